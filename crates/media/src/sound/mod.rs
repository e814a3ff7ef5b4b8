//! Sound: samples from the bytes of a file, and the spectrograms that a model reads.
