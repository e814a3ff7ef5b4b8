//! Rewrites a template for minijinja: expressions that minijinja computes differently from Jinja2 become calls to functions
//! in [`operators`](super::operators), or are refused by name.

use std::collections::BTreeSet;

use minijinja::Error;
use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CompareOpKind, Expr, Filter, Macro, Stmt, UnaryOpKind,
};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;

use super::dict::METHODS;
use super::operators::ATTRIBUTES;
use super::python::is_float;
use super::source::quoted;
use super::{failed, has, unsupported};

/// Names that Jinja2 defines, but this crate does not.
const NAMES: &str = "kwargs lipsum self varargs";
/// Functions that are not macros in the template.
const FUNCTIONS: &str = "cycler dict joiner loop namespace raise_exception range strftime_now";
/// String filters, which convert any value to text.
const TEXT_FILTERS: &str = "capitalize lower replace safe title trim upper";

/// Filters for items, which `None` does not have.
const ITEM_FILTERS: &str = "batch join list max min slice sort sum unique";
/// The same, of which a false value has none, whatever it is.
const ITEM_FILTERS_IF_TRUE: &str = "map reject rejectattr select selectattr";
/// Filters whose result is a generator in Jinja2, and a list in minijinja.
const GENERATORS: &str = "batch items map reject rejectattr select selectattr slice unique";

/// Returns the syntax of rewritten templates, whose delimiters do not occur in texts.
pub(super) fn syntax() -> Result<SyntaxConfig, Error> {
    let mut syntax = SyntaxConfig::builder();
    syntax
        .block_delimiters("\x02%", "%\x03")
        .variable_delimiters("\x02{", "}\x03");
    syntax
        .comment_delimiters("\x02#", "#\x03")
        .keep_trailing_newline(true)
        .build()
}

/// Rewrites a Jinja2 template, with transformers' whitespace settings, to [`syntax`].
///
/// # Errors
/// If the template is not valid, or has a construct that is not supported.
pub(super) fn rewritten(source: &str) -> Result<String, Error> {
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    let template = parse(source, "chat template", syntax).map_err(|error| {
        let reason = error
            .detail()
            .map_or_else(|| error.to_string(), str::to_string);
        let line = error.line().unwrap_or_default();
        failed(format!(
            "the syntax of line {line} is not valid or not supported: {reason}"
        ))
    })?;
    let mut writer = TemplateWriter::default();
    if let Stmt::Template(template) = &template {
        writer.body(&template.children, EnclosingStatement::Loop)?;
    }
    Ok(writer.out)
}

/// The statement around another one, as far as `{% break %}` and `{% continue %}` depend on it.
#[derive(Clone, Copy)]
enum EnclosingStatement {
    Loop,
    /// A statement with this name, which opens a scope or catches its text.
    Scope(&'static str),
}

#[derive(Default)]
struct TemplateWriter<'a> {
    out: String,
    /// The number of line ends in `out`: a tag is on its original line, so that errors name that line.
    lines: usize,
    /// Names that the template gives a value to.
    assigned: BTreeSet<&'a str>,
    macros: BTreeSet<&'a str>,
}

impl<'a> TemplateWriter<'a> {
    fn tag(&mut self, inside: &str) {
        self.out += &format!("\x02% {inside} %\x03");
    }

    fn body(&mut self, body: &[Stmt<'a>], around: EnclosingStatement) -> Result<(), Error> {
        body.iter().try_for_each(|stmt| self.stmt(stmt, around))
    }

    /// Moves to an expression's line, inside the tag that was begun.
    fn begin(&mut self, start: &str, expr: &Expr) {
        let n = usize::from(expr.span().start_line).saturating_sub(self.lines + 1);
        self.lines += n;
        self.out += start;
        self.out += &"\n".repeat(n);
    }

    fn stmt(&mut self, stmt: &Stmt<'a>, around: EnclosingStatement) -> Result<(), Error> {
        match stmt {
            Stmt::EmitRaw(raw) => {
                self.lines += raw.raw.matches('\n').count();
                self.out += raw.raw;
            }
            Stmt::EmitExpr(emit) => {
                self.begin("\x02{ ", &emit.expr);
                let expr = self.expr(&emit.expr)?;
                self.out += &format!("{expr} }}\x03");
            }
            Stmt::ForLoop(node) => {
                let items = self.expr(&node.iter)?;
                let target = self.target(&node.target)?;
                let filter = match &node.filter_expr {
                    Some(filter) => format!(" if {}", self.expr(filter)?),
                    None => String::new(),
                };
                let recursive = if node.recursive { " recursive" } else { "" };
                self.begin("\x02% for ", &node.iter);
                self.out +=
                    &format!("{target} in python_iterated({items}){filter}{recursive} %\x03");
                self.body(&node.body, EnclosingStatement::Loop)?;
                if !node.else_body.is_empty() {
                    self.tag("else");
                    self.body(&node.else_body, around)?;
                }
                self.tag("endfor");
            }
            Stmt::IfCond(node) => {
                let condition = self.expr(&node.expr)?;
                self.begin("\x02% if ", &node.expr);
                self.out += &format!("{condition} %\x03");
                self.body(&node.true_body, around)?;
                if !node.false_body.is_empty() {
                    self.tag("else");
                    self.body(&node.false_body, around)?;
                }
                self.tag("endif");
            }
            Stmt::WithBlock(node) => {
                // Jinja2 computes all values before it assigns the first.
                let (mut values, mut targets) = (String::new(), String::new());
                for (index, (_, value)) in node.assignments.iter().enumerate() {
                    values += &format!("python_{index} = {}, ", self.expr(value)?);
                }
                for (index, (target, _)) in node.assignments.iter().enumerate() {
                    targets += &format!("({}) = python_{index}, ", self.target(target)?);
                }
                self.tag(&format!(
                    "with {}",
                    (values + &targets).trim_end_matches(", ")
                ));
                self.body(&node.body, EnclosingStatement::Scope("with"))?;
                self.tag("endwith");
            }
            Stmt::Set(node) => {
                let mut value = self.expr(&node.expr)?;
                if let Expr::List(_) = &node.target {
                    value = format!("python_iterated({value})"); // also the letters of a text
                }
                let target = match &node.target {
                    Expr::GetAttr(attribute) => {
                        format!("{}.{}", self.expr(&attribute.expr)?, attribute.name)
                    }
                    target => self.target(target)?,
                };
                self.begin("\x02% set ", &node.expr);
                self.out += &format!("{target} = {value} %\x03");
            }
            Stmt::SetBlock(node) => {
                let filter = match &node.filter {
                    Some(filter) => format!(" | {}", self.expr(filter)?),
                    None => String::new(),
                };
                let target = self.target(&node.target)?;
                self.tag(&format!("set {target}{filter}"));
                self.body(&node.body, EnclosingStatement::Scope("set"))?;
                self.tag("endset");
            }
            Stmt::FilterBlock(node) => {
                let filter = self.expr(&node.filter)?;
                self.tag(&format!("filter {filter}"));
                self.body(&node.body, EnclosingStatement::Scope("filter"))?;
                self.tag("endfilter");
            }
            Stmt::Macro(node) => {
                self.macros.insert(node.name);
                self.of_macro(&format!("macro {}", node.name), node, "")?;
                self.tag("endmacro");
            }
            Stmt::CallBlock(node) => {
                let call = self.call(&node.call)?;
                self.of_macro("call", &node.macro_decl, &call)?;
                self.tag("endcall");
            }
            Stmt::Break(_) | Stmt::Continue(_) => {
                let name = if matches!(stmt, Stmt::Break(_)) {
                    "break"
                } else {
                    "continue"
                };
                if let EnclosingStatement::Scope(scope) = around {
                    return Err(unsupported(format!(
                        "{{% {name} %}} within {{% {scope} %}}"
                    )));
                }
                self.tag(name);
            }
            Stmt::AutoEscape(_) => return Err(unsupported("{% autoescape %}")),
            Stmt::Do(_) => return Err(unsupported("{% do %}, which transformers does not know,")),
            _ => return Err(unsupported("a statement of several templates")),
        }
        Ok(())
    }

    /// Writes a macro. Parameters get their defaults in the body, in order, because one may read an earlier one. Only a
    /// missing argument is replaced, not an undefined one.
    fn of_macro(&mut self, start: &str, node: &Macro<'a>, end: &str) -> Result<(), Error> {
        let names: Vec<&str> = node.args.iter().filter_map(name).collect();
        self.assigned.extend(&names);
        self.tag(&format!("{start}({}) {end}", names.join(", ")));
        let n_required = names.len() - node.defaults.len();
        for (index, name) in names.iter().enumerate() {
            let default = match index.checked_sub(n_required) {
                Some(index) => format!(
                    "{} if {name} is undefined else ",
                    self.expr(&node.defaults[index])?
                ),
                None => String::new(),
            };
            self.tag(&format!("set {name} = {default}python_taken({name})"));
        }
        self.body(&node.body, EnclosingStatement::Loop)
    }

    fn target(&mut self, target: &Expr<'a>) -> Result<String, Error> {
        match target {
            Expr::Var(var) => {
                self.assigned.insert(var.id);
                Ok(var.id.to_string())
            }
            Expr::List(list) => {
                let items = list.items.iter().map(|item| self.target(item));
                Ok(format!(
                    "({},)",
                    items.collect::<Result<Vec<_>, _>>()?.join(", ")
                ))
            }
            _ => Err(unsupported("this target of an assignment")),
        }
    }

    /// Writes expressions with a comma after each.
    fn list(&mut self, items: &[Expr<'a>]) -> Result<String, Error> {
        items
            .iter()
            .map(|item| Ok(self.expr(item)? + ", "))
            .collect()
    }

    fn expr(&mut self, expr: &Expr<'a>) -> Result<String, Error> {
        Ok(match expr {
            Expr::Var(var) if has(NAMES, var.id) && !self.assigned.contains(var.id) => {
                return Err(unsupported(format!("`{}`", var.id)));
            }
            Expr::Var(var) => var.id.to_string(),
            Expr::Const(constant) => match (constant.value.kind(), is_float(&constant.value)) {
                (ValueKind::String, _) => quoted(constant.value.as_str().unwrap_or_default()),
                (_, Some(x)) if x.is_infinite() => return Err(unsupported("so large a number")),
                (_, Some(x)) => format!("{x:?}"),
                _ => constant.value.to_string().to_lowercase(),
            },
            Expr::Slice(node) => {
                let mut part = |part: &Option<Expr<'a>>| match part {
                    Some(part) => self.expr(part),
                    None => Ok("none".to_string()),
                };
                let (start, stop, step) =
                    (part(&node.start)?, part(&node.stop)?, part(&node.step)?);
                format!(
                    "python_slice({}, {start}, {stop}, {step})",
                    self.expr(&node.expr)?
                )
            }
            Expr::UnaryOp(node) => match node.op {
                UnaryOpKind::Not => format!("(not {})", self.expr(&node.expr)?),
                UnaryOpKind::Neg => format!("(-python_number({}))", self.expr(&node.expr)?),
            },
            Expr::BinOp(node) => {
                let (a, b) = (self.expr(&node.left)?, self.expr(&node.right)?);
                let is_const = [&node.left, &node.right].map(|side| matches!(side, Expr::Const(_)));
                let is_const = is_const.contains(&true);
                match node.op {
                    BinOpKind::ScAnd => format!("({a} and {b})"),
                    BinOpKind::ScOr => format!("({a} or {b})"),
                    BinOpKind::Eq if is_const => format!("({a} == {b})"),
                    BinOpKind::Ne if is_const => format!("({a} != {b})"),
                    BinOpKind::Eq => format!("python_compare({a}, '==', {b})"),
                    BinOpKind::Ne => format!("python_compare({a}, '!=', {b})"),
                    BinOpKind::Lt => format!("python_compare({a}, '<', {b})"),
                    BinOpKind::Lte => format!("python_compare({a}, '<=', {b})"),
                    BinOpKind::Gt => format!("python_compare({a}, '>', {b})"),
                    BinOpKind::Gte => format!("python_compare({a}, '>=', {b})"),
                    BinOpKind::In => format!("python_compare({a}, 'in', {b})"),
                    BinOpKind::Add => format!("python_added({a}, {b})"),
                    BinOpKind::Concat => format!("python_joined({a}, {b})"),
                    BinOpKind::Rem => format!("python_percent({a}, {b})"),
                    BinOpKind::Sub => format!("(python_term({a}) - python_term({b}))"),
                    BinOpKind::Mul => format!("(python_factor({a}) * python_factor({b}))"),
                    BinOpKind::Div => format!("({a} / {b})"),
                    BinOpKind::FloorDiv => format!("({a} // {b})"),
                    BinOpKind::Pow => format!("python_real({a} ** {b})"),
                }
            }
            Expr::Compare(node) => {
                // Jinja2 stops at the first comparison that is false.
                let mut left = self.expr(&node.expr)?;
                let mut all = Vec::new();
                for op in &node.ops {
                    let right = self.expr(&op.expr)?;
                    all.push(format!(
                        "python_compare({left}, '{}', {right})",
                        comparison(op.op)
                    ));
                    left = right;
                }
                format!("({})", all.join(" and "))
            }
            Expr::IfExpr(node) => {
                let (condition, value) = (self.expr(&node.test_expr)?, self.expr(&node.true_expr)?);
                match &node.false_expr {
                    Some(other) => format!("({value} if {condition} else {})", self.expr(other)?),
                    None => format!("({value} if {condition})"),
                }
            }
            Expr::Filter(node) => {
                check_attribute(node)?;
                let value = match &node.expr {
                    Some(expr) => self.expr(expr)? + "|",
                    None => String::new(),
                };
                let before = match node.name {
                    name if has(TEXT_FILTERS, name) => "python_text|",
                    name if has(ITEM_FILTERS, name) => "python_items|",
                    name if has(ITEM_FILTERS_IF_TRUE, name) => "python_items_if_true|",
                    _ => "",
                };
                let after = if has(GENERATORS, node.name) {
                    "|python_generator"
                } else {
                    ""
                };
                let args = self.arguments(&node.args, false)?;
                format!("{value}{before}{}{args}{after}", node.name)
            }
            Expr::Test(node) => {
                let (value, args) = (self.expr(&node.expr)?, self.arguments(&node.args, false)?);
                format!("({value} is {}{args})", node.name)
            }
            Expr::GetAttr(node)
                if name(&node.expr).is_some_and(|name| self.macros.contains(name)) =>
            {
                return Err(unsupported("an attribute of a macro"));
            }
            Expr::GetAttr(node) if has(ATTRIBUTES, node.name) => {
                format!(
                    "python_attribute({}, '{}')",
                    self.expr(&node.expr)?,
                    node.name
                )
            }
            Expr::GetAttr(node) => format!("({}).{}", self.expr(&node.expr)?, node.name),
            Expr::GetItem(node) => {
                let (value, key) = (self.expr(&node.expr)?, self.expr(&node.subscript_expr)?);
                format!("python_item({value}, {key})")
            }
            Expr::Call(call) => self.call(call)?,
            Expr::List(node) => format!("[{}]", self.list(&node.items)?),
            Expr::Tuple(node) => format!("({})", self.list(&node.items)?),
            Expr::Map(node) => {
                let pairs = node.keys.iter().zip(&node.values);
                let pair = |(key, value)| {
                    Ok(format!(
                        "python_key({}): {}",
                        self.expr(key)?,
                        self.expr(value)?
                    ))
                };
                format!(
                    "{{{}}}",
                    pairs
                        .map(pair)
                        .collect::<Result<Vec<_>, Error>>()?
                        .join(", ")
                )
            }
        })
    }

    fn call(&mut self, call: &Call<'a>) -> Result<String, Error> {
        let (callee, is_macro) = match &call.expr {
            Expr::GetAttr(method) if method.name == "cycle" && call.args.is_empty() => {
                return Err(failed("loop.cycle() has no items"));
            }
            // An attribute may be a macro. A loop's methods are minijinja's own.
            Expr::GetAttr(method) => (
                format!("({}).{}", self.expr(&method.expr)?, method.name),
                name(&method.expr) != Some("loop"),
            ),
            callee => (
                self.expr(callee)?,
                !name(callee)
                    .is_some_and(|name| has(FUNCTIONS, name) && !self.macros.contains(name)),
            ),
        };
        match call.args.is_empty() {
            true => Ok(callee + "()"),
            false => Ok(callee + &self.arguments(&call.args, is_macro)?),
        }
    }

    /// Writes arguments in parentheses; for a macro, undefined arguments count as given.
    fn arguments(&mut self, args: &[CallArg<'a>], is_macro: bool) -> Result<String, Error> {
        let given = |expr: &Expr, value: String| match is_macro && !matches!(expr, Expr::Const(_)) {
            true => format!("python_given({value})"),
            false => value,
        };
        let mut all = Vec::new();
        for arg in args {
            all.push(match arg {
                CallArg::Pos(expr) => given(expr, self.expr(expr)?),
                CallArg::Kwarg(name, expr) => format!("{name}={}", given(expr, self.expr(expr)?)),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) if is_macro => {
                    return Err(unsupported("`*` or `**` before an argument of a macro"));
                }
                CallArg::PosSplat(expr) => format!("*{}", self.expr(expr)?),
                CallArg::KwargSplat(expr) => format!("**{}", self.expr(expr)?),
            });
        }
        Ok(if all.is_empty() {
            String::new()
        } else {
            format!("({})", all.join(", "))
        })
    }
}

fn comparison(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "not in",
    }
}

/// Refuses a filter's attribute if a dictionary method has the same name: Jinja2 would find the key, and minijinja the
/// method.
fn check_attribute(node: &Filter) -> Result<(), Error> {
    let is_first = has("selectattr rejectattr groupby sum", node.name);
    for (index, arg) in node.args.iter().enumerate() {
        let attribute = match arg {
            CallArg::Pos(Expr::Const(constant)) if is_first && index == 0 => constant,
            CallArg::Kwarg("attribute", Expr::Const(constant)) => constant,
            _ => continue,
        };
        if attribute.value.is_none() && has("selectattr rejectattr", node.name) {
            return Err(unsupported(format!("none as attribute of {}", node.name)));
        }
        let mut parts = attribute.value.as_str().unwrap_or_default().split('.');
        if let Some(part) = parts.find(|part| METHODS.contains(part)) {
            return Err(unsupported(format!(
                "the attribute {part:?} of the filter {}",
                node.name
            )));
        }
    }
    Ok(())
}

fn name<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}
