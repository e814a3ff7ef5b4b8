//! A visitor over a layer and its inner layers. Adapters, dropout sources and tensor parallelism use it.

use std::fmt::Display;
use std::sync::Arc;
use std::vec::IntoIter;

use super::{
    Attention, AttentionPool, BlockFeedForward, Dropout, DropoutSource, FeedForward, Linear,
    MixtureOfExperts, Stack, TransformerBlock,
};
use crate::ops::Ranks;

/// A part of a layer that has no parts itself.
#[doc(hidden)]
pub enum LayerPart<'a> {
    Linear(&'a Linear),
    Dropout(&'a Dropout),
    /// The size in bytes of weights that a layer has packed together.
    Packed(usize),
}

/// A [`LayerPart`] that a visitor may change.
#[doc(hidden)]
pub enum LayerPartMut<'a> {
    Linear(&'a mut Linear),
    Dropout(&'a mut Dropout),
    /// The tensor-parallel group of a sublayer.
    Ranks(&'a mut Option<Arc<Ranks>>),
}

/// A layer that shows its parts to a visitor, each with its role: `attention.query` in a block with the role "".
#[doc(hidden)]
pub trait Visit {
    /// Hands each part to `visitor`.
    fn visit<'a>(&'a self, role: &str, visitor: &mut dyn FnMut(&str, LayerPart<'a>));

    /// Hands each part to `visitor`, which may change it.
    fn visit_mut<'a>(&'a mut self, role: &str, visitor: &mut dyn FnMut(&str, LayerPartMut<'a>));

    /// Returns the linear layers with their roles, mutable.
    fn linears_mut(&mut self) -> IntoIter<(String, &mut Linear)> {
        let mut linears = Vec::new();
        self.visit_mut("", &mut |role, part| {
            if let LayerPartMut::Linear(linear) = part {
                linears.push((role.to_string(), linear));
            }
        });
        linears.into_iter()
    }

    /// Reduces linear layers to their shapes and biases, after their weights were packed together.
    fn join_linears(&mut self) {
        for (_, linear) in self.linears_mut() {
            *linear = linear.joined();
        }
    }

    /// Returns every dropout, with those of adapters.
    fn dropouts(&self) -> Vec<&Dropout> {
        let mut dropouts = Vec::new();
        self.visit("", &mut |_, part| match part {
            LayerPart::Linear(linear) => dropouts.extend(linear.dropout()),
            LayerPart::Dropout(dropout) => dropouts.push(dropout),
            LayerPart::Packed(_) => {}
        });
        dropouts
    }

    /// Returns the size of all packed weights in bytes.
    fn packed_bytes(&self) -> usize {
        let mut bytes = 0;
        self.visit("", &mut |_, part| match part {
            LayerPart::Linear(linear) => bytes += linear.packed_bytes(),
            LayerPart::Packed(of_layer) => bytes += of_layer,
            LayerPart::Dropout(_) => {}
        });
        bytes
    }

    /// Makes every dropout draw its masks from `source`.
    fn draw_from(&mut self, source: &DropoutSource) {
        self.visit_mut("", &mut |_, part| match part {
            LayerPartMut::Linear(linear) => linear.set_dropout_source(source),
            LayerPartMut::Dropout(dropout) => dropout.set_source(source.clone()),
            LayerPartMut::Ranks(_) => {}
        });
    }

    /// Marks the layer as this rank's shard. Its attention and feed-forward outputs are summed over the group.
    fn divide(&mut self, ranks: &Arc<Ranks>) {
        self.visit_mut("", &mut |role, part| {
            if let LayerPartMut::Ranks(of) = part
                && !role.ends_with("layer_input")
            {
                *of = Some(ranks.clone());
            }
        });
    }
}

/// Joins a layer's role and the name of a part in it.
pub(super) fn join(role: &str, name: impl Display) -> String {
    match (role, name.to_string()) {
        ("", name) => name,
        (_, name) if name.is_empty() => role.to_string(),
        (_, name) => format!("{role}.{name}"),
    }
}

/// Implements [`Visit`] for a part without inner parts.
macro_rules! leaf {
    ($leaf:ident) => {
        impl Visit for $leaf {
            fn visit<'a>(&'a self, role: &str, visitor: &mut dyn FnMut(&str, LayerPart<'a>)) {
                visitor(role, LayerPart::$leaf(self));
            }

            fn visit_mut<'a>(
                &'a mut self,
                role: &str,
                visitor: &mut dyn FnMut(&str, LayerPartMut<'a>),
            ) {
                visitor(role, LayerPartMut::$leaf(self));
            }
        }
    };
}

leaf!(Linear);
leaf!(Dropout);

impl Visit for Option<Arc<Ranks>> {
    fn visit<'a>(&'a self, _: &str, _: &mut dyn FnMut(&str, LayerPart<'a>)) {}

    fn visit_mut<'a>(&'a mut self, role: &str, visitor: &mut dyn FnMut(&str, LayerPartMut<'a>)) {
        visitor(role, LayerPartMut::Ranks(self));
    }
}

/// Weights of a layer that are packed together.
pub(crate) trait PackedTogether {
    /// Returns the size in bytes.
    fn bytes(&self) -> usize;
}

impl<P: PackedTogether> Visit for Option<Arc<P>> {
    fn visit<'a>(&'a self, role: &str, visitor: &mut dyn FnMut(&str, LayerPart<'a>)) {
        if let Some(packed) = self {
            visitor(role, LayerPart::Packed(packed.bytes()));
        }
    }

    fn visit_mut<'a>(&'a mut self, _: &str, _: &mut dyn FnMut(&str, LayerPartMut<'a>)) {}
}

/// An optional layer, which has the role of the layer itself.
impl<V: Visit> Visit for Option<V> {
    fn visit<'a>(&'a self, role: &str, visitor: &mut dyn FnMut(&str, LayerPart<'a>)) {
        self.iter().for_each(|of| of.visit(role, visitor));
    }

    fn visit_mut<'a>(&'a mut self, role: &str, visitor: &mut dyn FnMut(&str, LayerPartMut<'a>)) {
        self.iter_mut().for_each(|of| of.visit_mut(role, visitor));
    }
}

impl<V: Visit> Visit for Box<V> {
    fn visit<'a>(&'a self, role: &str, visitor: &mut dyn FnMut(&str, LayerPart<'a>)) {
        (**self).visit(role, visitor);
    }

    fn visit_mut<'a>(&'a mut self, role: &str, visitor: &mut dyn FnMut(&str, LayerPartMut<'a>)) {
        (**self).visit_mut(role, visitor);
    }
}

/// Numbered layers: `experts.0`, `experts.1` and so on.
impl<V: Visit> Visit for Vec<V> {
    fn visit<'a>(&'a self, role: &str, visitor: &mut dyn FnMut(&str, LayerPart<'a>)) {
        for (i, of) in self.iter().enumerate() {
            of.visit(&join(role, i), visitor);
        }
    }

    fn visit_mut<'a>(&'a mut self, role: &str, visitor: &mut dyn FnMut(&str, LayerPartMut<'a>)) {
        for (i, of) in self.iter_mut().enumerate() {
            of.visit_mut(&join(role, i), visitor);
        }
    }
}

/// Layers with their own indices or names: `adapters.1` and `adapters.3`.
impl<N: Display, V: Visit> Visit for Vec<(N, V)> {
    fn visit<'a>(&'a self, role: &str, visitor: &mut dyn FnMut(&str, LayerPart<'a>)) {
        for (name, of) in self {
            of.visit(&join(role, name), visitor);
        }
    }

    fn visit_mut<'a>(&'a mut self, role: &str, visitor: &mut dyn FnMut(&str, LayerPartMut<'a>)) {
        for (name, of) in self {
            of.visit_mut(&join(role, name), visitor);
        }
    }
}

/// Lists the parts of a layer: first those with the layer's own role, then those whose role is their name.
macro_rules! parts {
    ($layer:ty $(, $of:ident)?: $($pattern:pat => [$($own:ident),*] [$($named:ident),*]),+) => {
        impl$(<$of: $crate::layers::visit::Visit>)? $crate::layers::visit::Visit for $layer {
            fn visit<'a>(
                &'a self,
                role: &str,
                visitor: &mut dyn FnMut(&str, $crate::layers::visit::LayerPart<'a>),
            ) {
                match self {
                    $($pattern => {
                        $($own.visit(role, visitor);)*
                        $($named.visit(&$crate::layers::visit::join(role, stringify!($named)), visitor);)*
                    })+
                }
            }

            fn visit_mut<'a>(
                &'a mut self,
                role: &str,
                visitor: &mut dyn FnMut(&str, $crate::layers::visit::LayerPartMut<'a>),
            ) {
                match self {
                    $($pattern => {
                        $($own.visit_mut(role, visitor);)*
                        $($named.visit_mut(&$crate::layers::visit::join(role, stringify!($named)), visitor);)*
                    })+
                }
            }
        }
    };
}

/// Implements the public methods that reach all parts of a layer.
macro_rules! draws {
    ($($layer:ident),*) => {
        $(impl $layer {
            /// Makes the layer draw all its dropout masks from `source`, in the order of the forward pass.
            pub fn set_dropout_source(&mut self, source: &DropoutSource) {
                self.draw_from(source);
            }

            /// Returns the size of the packed weights in bytes: 0 unless the layer is packed.
            pub fn bytes(&self) -> usize {
                self.packed_bytes()
            }
        })*
    };
}

draws!(
    Attention,
    AttentionPool,
    BlockFeedForward,
    FeedForward,
    MixtureOfExperts,
    Stack,
    TransformerBlock
);

pub(crate) use parts;
