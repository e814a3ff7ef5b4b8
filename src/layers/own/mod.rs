//! What single families have: a folder for each, which the other layers ask and do not look into.

pub(crate) mod gemma;
