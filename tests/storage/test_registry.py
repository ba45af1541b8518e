from pathlib import Path


async def test_smoke(store, store_url) -> None:
    print(store_url)
