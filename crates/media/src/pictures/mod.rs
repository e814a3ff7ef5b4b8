//! Pictures: pixels from the bytes of a file, in the size and range that a model reads.
