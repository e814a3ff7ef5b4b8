//! Tables of methods that set one thing and hand the value on.

/// Each line is a method: `with_window(window: Option<usize>) => window = window;`.
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

pub(crate) use setters;
