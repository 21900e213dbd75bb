"""The contenders' programs: each runs in the interpreter of its contender."""
