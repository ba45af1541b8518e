"""Two lanes: `make test` runs the quick one, `make test-long` the other, and `.ci/run` both.

A test is in the quick lane unless one of these rules puts it into the long one:

- it is marked ``@pytest.mark.slow``;
- one of its parameters is ``postgresql``, or ``procrastinate`` for jobs there: the same test runs
  on SQLite, too;
- it is marked ``@pytest.mark.repeated`` and is no property: it kills processes in a loop;
- it runs a benchmark (`tests/benchmarks`), or stands in one of a few long files.

A property (a test of hypothesis) is in both: with 15 examples in the quick lane and 60 in the long
one, unless it is marked slow. Without ``--lane``, pytest runs everything with 60.

At the end the files that took most CPU seconds are listed, with those of the processes that they
started; wall clocks say little on a busy machine. A test that takes longer than the limit fails.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

QUICK, LONG, ALL = "quick", "long", "all"
#: Folders and files whose tests all are in the long lane.
_LONG_FOLDERS = ("benchmarks",)
_LONG_FILES = (
    "artifacts/test_fire.py",
    "artifacts/test_s3.py",
    "cli/test_simulate.py",
    "cli/test_tail.py",
    "context/test_sessions.py",
    "fire/test_gateway.py",
    "fire/test_migration.py",
    "fire/test_outage.py",
    "history/test_histories.py",
    "proxy/test_windows.py",
    "recall/test_reviewed_recall.py",
    "server/test_schemathesis.py",
    "simulation/test_gradient.py",
    "storage/test_file_encryption.py",
    "storage/test_postgres_searching.py",
    "storage/test_replica.py",
    "test_backup.py",
    "testing/test_project.py",
)
#: Files that are listed.
_MOST = 20
#: Seconds after the report of a test that hangs (``faulthandler_timeout``) when it fails.
_GRACE = 30
_CPU = "cpu_seconds"
_HERE = Path(__file__).parent
#: What needs a browser, or builds the page.
_PAGES = (_HERE / "page", _HERE / "release" / "test_dist.py")

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
# The same examples in every run: a red suite is red for everybody. `make fuzz` rolls the dice.
for _name, _examples in {QUICK: 15, LONG: 60, ALL: 60}.items():
    settings.register_profile(
        _name,
        derandomize=True,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=_SLOW,
    )
settings.register_profile(
    "fuzz", max_examples=1_000, deadline=None, suppress_health_check=_SLOW, print_blob=True
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane",
        choices=(QUICK, LONG, ALL),
        default=ALL,
        help="which tests to run: see tests/lanes.py",
    )

    parser.addoption(
        "--no-browser",
        action="store_true",
        help="leave out the tests of the web page, which need a browser",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Before any test is imported: what a test says of its examples may depend on it.
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or config.getoption("--lane"))
    # A background job has to ignore Ctrl-C, and its children would, too. A handler that does
    # nothing also ignores it, but is not inherited by a program that is started.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ignore)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    pass


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lane = config.getoption("--lane")
    if config.getoption("--no-browser"):
        pages = [item for item in items if _needs_browser(item)]
        config.hook.pytest_deselected(items=pages)
        items[:] = [item for item in items if not _needs_browser(item)]
    if lane == ALL:
        return
    kept, left = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (kept if lane in lanes_of(item) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _needs_browser(item: pytest.Item) -> bool:
    is_page = any(item.path.is_relative_to(each) for each in _PAGES)
    return is_page or item.name.endswith("[page]")  # its benchmark


def lanes_of(item: pytest.Item) -> tuple[str, ...]:
    """The lanes in which a test runs."""
    is_property = is_hypothesis_test(getattr(item, "obj", None))
    file = item.path.relative_to(_HERE)
    if (
        file.parts[0] in _LONG_FOLDERS
        or file.as_posix() in _LONG_FILES
        or item.get_closest_marker("slow")
        or _is_on_postgresql(item)
        or (item.get_closest_marker("repeated") and not is_property)
    ):
        return (LONG,)
    return (QUICK, LONG) if is_property else (QUICK,)


def _is_on_postgresql(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    return given is not None and any(
        each in ("postgresql", "procrastinate") for each in given.params.values()
    )


# ---- CPU seconds per file --------------------------------------------------------------------

_spent = defaultdict[str, float](float)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the CPU seconds before it, and set the limit."""
    item.stash[_before] = _cpu_seconds()
    limit = float(item.config.getini("faulthandler_timeout") or 0)
    if limit:
        signal.signal(signal.SIGALRM, _too_long)
        # Again after a while: what a test does on its way out may hang, too.
        signal.setitimer(signal.ITIMER_REAL, limit + _GRACE, _GRACE)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


_before = pytest.StashKey[float]()


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    pytest.fail("The test takes longer than faulthandler_timeout allows: it hangs.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send the CPU seconds with the last report, from whichever process it ran in."""
    report = yield
    if call.when == "teardown":
        spent = max(0.0, _cpu_seconds() - item.stash[_before])
        report.user_properties.append((_CPU, round(spent, 3)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == _CPU:
            _spent[report.nodeid.partition("::")[0]] += float(str(value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.getoption("--no-browser"):
        terminalreporter.section("Without a browser: the tests of the web page were left out")
    if not _spent:
        return
    terminalreporter.section(f"CPU seconds: {sum(_spent.values()):.0f}")
    for name, seconds in sorted(_spent.items(), key=lambda each: -each[1])[:_MOST]:
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")


def _cpu_seconds() -> float:
    """What this process and all that it started have used so far."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    return total + sum(_of_process(child) for child in _children(os.getpid()))


def _of_process(pid: int) -> float:
    """That of a process that still runs, its children's included; 0 where there is no /proc."""
    with suppress(OSError):
        # The name may hold blanks and brackets: the numbers stand behind the last one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK") + sum(map(_of_process, _children(pid)))
    return 0.0


def _children(pid: int) -> list[int]:
    found = list[int]()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return found
