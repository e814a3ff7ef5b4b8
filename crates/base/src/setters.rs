//! Macros for builder methods, getters and names of values.

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

/// Reads an enum's values by their names; `$what` stands in the error for another name.
#[macro_export]
macro_rules! from_name {
    ($type:ty, $what:literal, $($name:literal => $value:expr),+ $(,)?) => {
        impl std::str::FromStr for $type {
            type Err = $crate::Error;

            /// Reads a name.
            ///
            /// # Errors
            /// If it is not known; the message has the known ones.
            fn from_str(name: &str) -> $crate::Result<Self> {
                match name {
                    $($name => Ok($value),)+
                    _ => {
                        let names = [$($name),+].join(", ");
                        let reason = format!("{name:?} is unknown; expected one of {names}");
                        Err($crate::Error::input($what, reason))
                    }
                }
            }
        }
    };
}
