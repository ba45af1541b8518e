"""Who may see what: lines of turns, families of forks, sharing, filters."""
