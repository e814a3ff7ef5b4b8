//! Macros for builder methods and getters.

/// Each line is a builder method: `with_window(window: Option<usize>) => window = window;`.
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($argument:ident: $type:ty) => $($field:ident).+ = $value:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(mut self, $argument: $type) -> Self {
                self.$($field).+ = $value;
                self
            }
        )*
    };
}

/// Each line is a getter: `weight(&self) -> &Tensor => &self.weight;`.
#[macro_export]
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident(&$this:ident) -> $type:ty => $value:expr;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&$this) -> $type {
                $value
            }
        )*
    };
}
