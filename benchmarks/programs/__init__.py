"""Programs of the contenders; each runs in the interpreter of its contender."""
