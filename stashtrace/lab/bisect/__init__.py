"""Find the commit that made a job slower: `git bisect`, by runs that take turns with those of the good commit."""
