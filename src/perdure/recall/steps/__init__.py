"""The steps of one recall under one deadline: search, hops, texts, filters, judge."""
