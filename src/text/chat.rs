//! Conversations as texts: chat templates and their messages.

pub(crate) mod continued;
pub(crate) mod conversation;
pub(crate) mod messages;
pub(crate) mod template;
