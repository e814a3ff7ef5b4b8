"""Snippets of Jinja2, rendered by the program and by transformers' own environment: the counts of renders that differ.

    python weights/sweep/snippets.py PROGRAM [--seed N] [--random N] [--combined N] [--model DIR] [--show N] [--write FILE]

The snippets cover Jinja2's statements, filters and tests, Python's methods and arithmetic, scopes, white space and texts of values; `--random`
adds expressions of random operands and operators, and `--combined` filters, formats, methods and statements with values of all kinds. Each is a chat template: the program renders it by `generate --print-prompt`, transformers by
its compiled template. Exits with 1 if a render differs, or fails here alone without a message that says what this crate does not support.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

from combined_snippets import combined

ROOT = Path(__file__).resolve().parents[1]
# What errors say of what Jinja2 has and this crate does not.
REFUSALS = ("not supported", "unable to calculate")

VARIABLES = {
    "s": " Hello wOrld, it's \"é\" \n", "e": "", "w": "one two  three", "ab": "a,b,,c", "num": "-42", "html": "<b>a & 'b'</b>", "nl": "a\nb\n\nc\r\nd",
    "n": 7, "m": -3, "z": 0, "big": 10**17, "f": 2.5, "g": -0.5, "h": 1e16, "tiny": 1e-5, "w_": 3.0, "t": True, "u": False, "none_": None,
    "l": [3, 1, 2], "ws": ["b", "A", "c", "a", "B"], "mixed": [1, "a", None, True, 2.5, ["x"], {"k": "v"}], "empty": [], "ed": {},
    "d": {"b": 1, "a": {"items": "q", "x": None}, "é": "ü'", "C": [1, 2]}, "nested": [[1, 2], [3, [4, 5]], []],
    "rows": [{"name": "x", "v": 3, "in": {"k": 1}}, {"name": "y", "v": 1, "in": {"k": 2}}, {"name": "X", "v": 2, "in": {"k": 1}}, {"v": None, "name": "q"}],
    "uni": "日本 🦀 ß ǆ İ ﬁ", "tabs": "a\tb\x0bc\u2028d\x7f",
}
# The model's, which templates read by their names.
SPECIAL_TOKENS = {}
VALUES = [*VARIABLES, "missing", "1", "2.0", "'x'", "(1, 'a')", "[1]", "{'a': 1}", "none", "true", "range(3)"]


def of_operators() -> list[str]:
    """All operators between values of all types."""
    kinds = ["n", "m", "z", "f", "g", "h", "tiny", "big", "t", "none_", "s", "num", "l", "mixed", "d", "missing", "(1, 2)", "[1, 2]", "'ab'", "2", "0.1", "range(3)", "d.items()"]
    operators = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
    found = [f"{{{{ {a} {o} {b} }}}}" for o in operators for a in kinds for b in kinds if not (o == "*" and "big" in (a, b)) and not (o == "**" and b in ("big", "h"))]
    found += [f"{{{{ {o}{a} }}}}" for o in ("-", "+", "not ", "- -", "-+", "not not ") for a in VALUES]
    found += [f"{{{{ {e} }}}}" for e in (
        "1 < 2 < 3", "1 < 3 < 2", "1 == 1.0 == true", "'a' < 'b' != 'c'", "n > m > -10", "1 in l in [l]", "2 ** 3 ** 2", "-2 ** 2", "2 ** -1", "2 ** 0.5", "(-8) ** 0.5",
        "7 // -2", "-7 // 2", "-7 % 3", "7 % -3", "7.5 // 2", "-7.5 % 2", "1e308 * 10", "0.1 + 0.2", "1 / 3", "10 / 2", "2 ** 64", "2 ** 100", "2 ** 130", "10 ** 20 // 3", "1 + 2 * 3 - 4 / 2",
        "1 ~ 2 + 3", "'a' ~ 1 + 2", "1 + 2 ~ 'a'", "1 - 1 ~ 2", "'%s' % 'a'", "'%d-%s' % (1, 'x')", "'%05.2f|%x|%o|%e|%g|%r|%%' % (1.5, 255, 8, 12345.678, 0.0001, 'q')",
        "'%(b)s' % d", "'%-5s|' % 'ab'", "'%5s|' % 'ab'", "'%+d' % 5", "'%c' % 65", "'%s' % none", "'%s' % [1, 'a']", "'%s %s' % 'a'", "'a' % 1", "'%s' % missing", "'%.3s' % 'abcdef'", "'%*d' % (5, 3)",
        "not 1 == 2", "not none_ is none", "n is number and not m", "1 if n else 2", "1 if z", "(1 if z) is undefined", "(1 if z) ~ 'x'", "'a' if z else 'b' if u else 'c'", "[1 if t else 2]",
        "1, 2", "1,", "n, m if t else z", "()", "(1,)", "(n)", "[1, 2,]", "{'a': 1,}", "{}", "{1: 2, none: 3, true: 4, 'x': [1.0]}", "[[], {}, ()]", "'a' 'b' \"c\"", "1_000", "0x1F", "0b101", "0o17", "1e5", "1E-7",
        "1.5e300", "1_0.5", "1.", ".5", "010", "00", "1e16", "123456789012345678.0", "1e15", "0.0001", "0.00001", "-0.0", "5e-324", "1e22 ~ ''", "1e16|string", "[1e16, 1e-5]", "100000000000000000000", "99999999999999999999999999999999999999999",
        "true", "True", "false", "none", "None", "nan", "inf", "n.real", "n.foo", "s.foo", "none.foo", "none_.foo.bar", "missing.foo", "missing['a']", "missing[0]", "missing()", "missing|upper", "missing ~ 'a'", "d.nope", "d.nope.x", "d['nope']['x']",
        "d.a.items", "d.a['items']", "d.a.items()", "d.items() | list", "d.keys()", "d.values()", "d['keys']", "d.get('b')", "d.get('q')", "d.get('q', 5)", "d.get('q', default=5)", "l[0]", "l[-1]", "l[9]", "l['0']", "l['x']", "l[true]", "l[1.0]",
        "l.0", "l.0.0", "nested.1.1", "s[1]", "s[-1]", "s[99]", "uni[0]", "uni[3]", "'abc'[1]", "(1, 2)[0]", "(1, 2)[-1]", "range(5)[2]", "range(5)[-1]", "range(5)[1:3]", "d[1]", "d[[1]]", "mixed[6].k", "mixed[-1]['k']", "rows[0].in.k",
        "l is iterable", "d.items", "s.upper", "l.append", "l.append(1)", "d.update({})", "d.pop('b')", "l.sort()", "l.pop()", "d.clear", "d.__class__", "s.__len__()", "''.__class__", "l.__len__", "d['__class__']", "x is defined", "loop is defined",
        "namespace(a=1).a", "namespace(a=1)", "namespace({'a': 2}).a", "namespace(a=1).b", "dict(a=1)", "dict(a=1, b='x').items()", "dict({'x': 1}, y=2)", "dict([('a', 1)])", "dict()", "range(3)", "range(3)|list", "range(1, 9, 3)|list", "range(5, 0, -2)|list", "range(0)|list",
        "range(3)|length", "range('a')", "lipsum", "lipsum()", "cycler('a', 'b').next()", "cycler('a','b').current", "joiner(', ')()", "raise_exception('no')", "raise_exception(1)", "raise_exception()", "strftime_now('%%')", "strftime_now()", "self", "caller", "varargs",
    )]
    for value in ("s", "l", "'abcdef'", "(1, 2, 3)", "range(6)", "uni", "none_", "missing", "n", "d", "empty", "e"):
        for cut in (":", "::", "1:", ":1", "1:2", "-1:", ":-1", "::-1", "::2", "5:1:-2", "-2:-9:-1", "1:99", "99:", "-99:2", "::-2", "2::-1", ":2:-1", "none:none", "n:", "::0", "'a':", "1.0:", ":true"):
            found.append(f"{{{{ {value}[{cut}] }}}}")
    return found


def of_filters() -> list[str]:
    """All filters of Jinja2, of values of all types, with arguments."""
    plain = [
        "abs", "capitalize", "count", "length", "dictsort", "e", "escape", "first", "last", "float", "forceescape", "int", "items", "list", "lower", "max", "min", "pprint", "reverse", "safe", "sort", "string",
        "striptags", "sum", "title", "tojson", "trim", "unique", "upper", "wordcount", "urlencode", "filesizeformat", "center", "indent", "join", "round", "truncate", "wordwrap", "xmlattr", "urlize", "default", "d", "nope",
    ]
    found = [f"{{{{ {v}|{f} }}}}" for f in plain for v in VALUES]
    found += [f"{{{{ {v}|{f}|list }}}}" for f in ("reverse", "unique", "items", "dictsort", "batch(2)", "slice(2)", "batch(2, 'x')", "slice(2, 'x')") for v in VALUES]
    found += [f"{{{{ {v}|{f} }}}}" for f, values in {
        "attr('upper')": ["s", "n", "d"], "attr('b')": ["d", "missing"], "attr('items')": ["d"], "batch(0)|list": ["l"], "slice(4)|list": ["l", "ws"], "batch(3, none)|list": ["ws"], "slice(3)|map('list')|list": ["ws"],
        "center(20)": ["s", "n", "e", "uni"], "center(width=9)": ["w", "num"], "center(9)|replace(' ', '.')": ["'ab'", "'abc'", "num"], "default('x')": VALUES, "default('x', true)": VALUES, "default()": ["missing"], "default(none)": ["missing"], "default(value='x')": ["missing"],
        "default(default_value='x', boolean=true)": ["e", "missing", "n"], "d(1)": ["missing"], "dictsort(true)": ["d", "ed"], "dictsort(by='value')": ["{'a': 3, 'b': 1}", "d"], "dictsort(false, 'value', true)": ["{'a': 3, 'b': 1}"], "dictsort(reverse=true)": ["d"],
        "dictsort(case_sensitive=true)": ["{'b': 1, 'A': 2, 'a': 3}"], "first": ["l", "s", "d", "empty"], "float(1.5)": ["w", "none_", "num", "e"], "float(default=2)": ["w"], "float": ["'1e3'", "' 2 '", "'1_0'", "'inf'", "'nan'", "'0x1'", "'1,5'"],
        "int(9)": ["w", "none_", "e", "num", "missing"], "int(default=9, base=16)": ["'ff'", "'0xff'", "'zz'"], "int(base=2)": ["'101'", "'0b11'"], "int(0, 8)": ["'17'", "'0o17'"], "int(0, 0)": ["'0x1f'"], "int": ["'1_0'", "' 5 '", "'4.9'", "'-4.9'", "'1e2'", "'٣'", "2.9", "-2.9", "'inf'", "h", "'99999999999999999999'", "'+5'", "'+-5'", "'_1'", "''"],
        "format(1, 2)": ["'%s-%s'", "'%d'", "'x'"], "format(a=1)": ["'%(a)s'"], "format('x')": ["'%s'", "'%5s|'"], "groupby('name')": ["rows"], "groupby('v', default=0)": ["rows"], "groupby('in.k', default=0)|list": ["rows"], "groupby('name', case_sensitive=true)|list": ["rows"],
        "groupby('v')|map('first')|list": ["rows[:3]"], "indent": ["nl", "s", "w"], "indent(2)": ["nl"], "indent(2, true)": ["nl"], "indent(2, true, true)": ["nl"], "indent(width='> ')": ["nl"], "indent(width=3, first=true, blank=true)": ["nl", "tabs"], "indent(0)": ["nl"],
        "join(', ')": ["l", "mixed", "d", "s", "empty", "missing", "nested", "d.items()"], "join(d='-')": ["ws"], "join(',', 'name')": ["rows"], "join('|', attribute='v')": ["rows"], "join(1)": ["l"], "join(none)": ["ws"], "last": ["l", "s", "d", "empty", "d.items()"],
        "list": ["s", "d", "d.items()", "uni", "n"], "map('upper')|list": ["ws", "l"], "map('int')|list": ["['1', 'x']"], "map(attribute='name')|list": ["rows"], "map(attribute='nope')|list": ["rows"], "map(attribute='nope', default='z')|list": ["rows"], "map(attribute='in.k', default=0)|list": ["rows[:3]", "rows"],
        "map(attribute=0)|list": ["nested[:2]"], "map('default', 'x')|list": ["mixed"], "map('replace', 'a', 'b')|list": ["ws"], "map('nope')|list": ["ws"], "map()|list": ["ws"], "map('tojson')|join(',')": ["mixed"], "map('join', '-')|list": ["[['a', 'b'], ['c']]"], "max": ["l", "ws", "f", "mixed", "empty"],
        "max(true)": ["ws"], "max(attribute='v')": ["rows[:3]"], "min(case_sensitive=true)": ["ws"], "min(attribute='name')": ["rows"], "max(attribute='v').name": ["(rows[:3])"], "pprint": VALUES, "random": ["[1]", "empty"], "reject": ["mixed", "l"], "reject|list": ["mixed", "l"], "reject('odd')|list": ["l"], "reject('none')|list": ["mixed"],
        "rejectattr('v')|list": ["rows"], "rejectattr('name', 'eq', 'x')|list": ["rows"], "select|list": ["mixed"], "select('odd')|list": ["l"], "select('string')|list": ["mixed"], "select('gt', 1)|list": ["l"], "select('in', [1, 2])|list": ["l"], "select('>', 1)|list": ["l"], "select('nope')|list": ["l"], "select('defined')|list": ["mixed"],
        "selectattr('v')|list": ["rows"], "selectattr('v', 'equalto', 1)|list": ["rows"], "selectattr('in.k', '==', 1)|list": ["rows[:3]", "rows"], "selectattr('name', 'in', ['x', 'y'])|map(attribute='v')|list": ["rows"], "selectattr('nope', 'defined')|list": ["rows"], "selectattr('nope', 'undefined')|list|length": ["rows"], "selectattr()|list": ["rows"],
        "length": ["(l|select|list)", "(l|map('string'))", "(rows|selectattr('v'))", "d.items()", "d.keys()", "s", "uni", "n", "missing", "none_"], "replace('o', '0')": ["s", "w", "n", "none_", "missing"], "replace('o', '0', 1)": ["s"], "replace('', '-')": ["num"], "replace(4, 5)": ["num"], "replace('x')": ["s"], "replace(old='l', new='L')": ["s"],
        "reverse": ["s", "uni"], "reverse|list": ["l", "ws", "d", "d.items()", "(1, 2)"], "round(1)": ["f", "g", "2.25", "n", "1.005"], "round(0, 'floor')": ["f", "g"], "round(1, 'ceil')": ["2.21", "-2.21", "n"], "round(-1)": ["155", "145.0", "n"], "round(method='ceil')": ["f"], "round(2, 'x')": ["f"], "round": ["0.5", "1.5", "2.5", "-0.5", "1e20", "n"], "round|int": ["f", "2.5", "3.5"],
        "sort": ["l", "ws", "mixed", "d", "empty", "s"], "sort(true)": ["l", "ws"], "sort(reverse=true)": ["l"], "sort(case_sensitive=true)": ["ws"], "sort(attribute='name')": ["rows"], "sort(attribute='v')": ["rows[:3]", "rows"], "sort(false, true)": ["ws"], "sort(attribute='v,name')": ["rows[:3]"], "sort(attribute='nope')": ["rows"],
        "sum": ["l", "empty", "ws", "[0.1, 0.2]", "mixed"], "sum(attribute='v')": ["rows[:3]", "rows"], "sum(start=10)": ["l"], "sum('v', 1.5)": ["rows[:3]"], "tojson": VALUES + ["rows", "1e16", "1e-7", "{'z': 1, 'a': (1, 2)}", "{1: 2, none: 3}", "missing", "range(3)", "d.items()", "uni", "tabs", "html"], "tojson(indent=2)": ["d", "mixed", "empty", "ed", "nested"], "tojson(2)": ["uni"], "tojson(true)": ["uni"],
        "tojson(indent='\t')": ["d"], "tojson(sort_keys=true)": ["d", "rows"], "tojson(ensure_ascii=true)": ["uni", "d"], "tojson(separators=(',', ':'))": ["d"], "tojson(indent=0)": ["d"], "tojson(indent=2, separators=(', ', ' : '))": ["d"], "tojson(ensure_ascii=False, indent=4, sort_keys=True)": ["d", "rows"], "tojson(indent=none)": ["d"], "tojson(nope=1)": ["d"],
        "tojson|safe": ["d"], "tojson|length": ["d"], "tojson|replace('\"', \"'\")": ["d"], "trim": ["s", "nl", "tabs", "n", "none_", "missing"], "trim('d- ')": ["w", "num"], "trim(chars='\\n ')": ["s"], "truncate(5)": ["w", "s", "'abcdefg'"], "truncate(9)": ["w"], "truncate(5, true)": ["w", "html"], "truncate(5, true, '..')": ["w"], "truncate(8, false, '…', 0)": ["w"], "truncate(length=6, killwords=true, end='!', leeway=1)": ["w", "uni"], "truncate(1)": ["w"],
        "unique|list": ["l", "ws", "mixed", "[1, 1.0, true, 2]", "s"], "unique(true)|list": ["ws"], "unique(attribute='in.k')|list": ["rows[:3]"], "urlencode": ["s", "uni", "d", "html", "'a/b?c=d&e'", "n", "d.items()", "[['a', 1]]"], "wordcount": ["s", "w", "uni", "e", "\"it's a-b c_d\""], "wordwrap(5)": ["w", "s", "'abcdefghij kl'"], "wordwrap(10, false)": ["w"], "wordwrap(4, true, '|')": ["w", "nl"], "wordwrap(5, wrapstring='/')": ["w"],
        "wordwrap(6, break_on_hyphens=false)": ["'a-b-c-d e'"], "xmlattr": ["d", "{'a': 1, 'b': none, 'c': missing}"], "xmlattr(false)": ["{'a': '<'}"], "upper": ["uni", "s"], "lower": ["uni", "s"], "title": ["'ΟΔΟΣ ΑΣ-ΒΑΣ [ΣΣ'", "uni", "s", "w", "\"it's a-b (c) d1e\""], "capitalize": ["uni", "'éA'", "'ABC'"], "string": VALUES, "striptags": ["html", "'a  <!-- x --> b &amp; <i>c'", "s"],
        "upper|lower|trim": ["s"], "items": ["d", "ed", "missing", "l"], "items|list": ["d", "missing"], "abs": ["m", "g", "s", "t"], "filesizeformat": ["n", "1", "1000", "1500000", "big"], "filesizeformat(true)": ["1024", "2048000"], "e": ["html", "n", "none_", "html|e", "l"], "forceescape": ["html|e"], "escape|upper": ["html"], "safe": ["html", "n"], "safe|e": ["html"], "tojson(indent=2)|indent(4)": ["d"],
        "upper()": ["w"], "lower(1)": ["w"], "trim()": ["s"], "list|tojson": ["d", "d.items()", "range(3)", "ws|map('upper')"],
    }.items() for v in values]
    found += [f"{{{{ {e} }}}}" for e in (
        "html|safe + '<'", "'<' + html|safe", "html|e + '<'", "html|safe ~ '<'", "(html|safe)|upper + '<'", "'%s <' % html|safe", "('%s'|safe) % '<'", "html|safe|replace('b', '<')", "html|safe + html|safe", "(html|e).replace('a', '<')", "(html|safe).upper() + '<'", "(html|safe)[0] + '<'", "(html|safe) * 2 + '<'",
        "[html|e, '<']|join", "(html|e)|join", "(html|safe).split('a')", "(html|safe) is string", "(html|safe) == html", "(html|e).join(['<', '>'])", "(html|safe).format(1)", "html|safe|tojson", "[html|safe]", "(html|safe)|trim + '<'", "html|safe|string + '<'", "(html|safe)|lower ~ '<'", "html|safe|indent + '<'", "html|safe|length", "d|xmlattr + '<'",
        "(l|map('string')) is iterable", "(l|map('string')) is sequence", "(l|map('string'))|string is string", "1 if l|select('gt', 9) else 2", "1 if rows|selectattr('v', 'eq', 77) else 2", "(l|select('gt', 9))|first", "(l|select('gt', 1))|first", "(l|map('string'))[0]", "(l|select)|last", "(l|reverse)[0]", "(l|batch(2))|list|length", "(rows|groupby('name'))[0].grouper",
        "(rows|groupby('name'))[0].list|length", "(rows|groupby('name'))[0][1]|length", "d|dictsort|first", "(d|dictsort)[0][0]", "(d|items)|list", "d|length", "l|join|int + 1", "n|string|length", "-5|abs", "-n|abs", "+n|abs", "-l[0]|abs", "not l|length", "n|float|string", "big|string", "h|int", "f|int", "1e30|int", "n + f|int", "(n + f)|int", "n ~ f|int",
        "l|sort|first ~ l|max", "s|trim|length > 3", "ws|map('lower')|unique|sort|join", "ws|map('lower')|sort|join(',')", "ws|sort|map('upper')|join", "d|list|sort|join", "d.keys()|list|sort", "(d.values()|list)[0]", "d.items()|first", "[l, l]|sum(start=[])", "nested|map('length')|list", "nested|map('first')|list", "rows|map(attribute='name')|map('upper')|join(' ')",
        "rows|map('attr', 'name')|list", "rows|map(attribute='in')|list", "l|map('string')|join('-')", "l|map('abs')|sum", "l|map('float')|list", "ws|select('lower')|list", "ws|select('upper')|list", "ws|reject('equalto', 'a')|list", "[none_, 1]|select('none')|list", "mixed|select('mapping')|list", "mixed|reject('string')|list|length",
    )]
    return found


def of_tests() -> list[str]:
    """All tests of Jinja2 of values of all types."""
    plain = ["boolean", "callable", "defined", "escaped", "even", "false", "float", "integer", "iterable", "lower", "mapping", "none", "number", "odd", "sequence", "string", "true", "undefined", "upper", "filter", "test", "nope"]
    found = [f"{{{{ {v} is {t} }}}}" for t in plain for v in VALUES]
    found += [f"{{{{ {e} }}}}" for e in (
        "n is divisibleby 7", "n is divisibleby(2)", "n is divisibleby 0", "n is eq 7", "n is eq(7.0)", "n is equalto 7", "n is ==(7)", "n is ne 7", "n is lt 8", "n is le 7", "n is gt 7", "n is ge 7", "n is greaterthan 3", "n is lessthan 3", "n is in l", "n is in [7]", "n is not in [7]", "'a' is in 'cat'", "n is sameas n", "none_ is sameas none", "t is sameas true", "1 is sameas true", "'x' is sameas 'x'",
        "'upper' is filter", "'nope' is filter", "'odd' is test", "n is not odd", "n is odd and m is odd", "n is odd or z", "n is not defined", "missing is not defined", "missing.x is defined", "d.b is defined", "d.nope is defined", "d['nope'] is not defined", "d.a.x is none", "d.a.x is defined", "not n is odd", "n is odd is true", "n + 1 is odd", "(n + 1) is odd", "-n is odd", "n is odd ~ 'x'", "n is divisibleby n", "n is divisibleby 2 + 5",
        "n is lt 3 if t else 9", "raise_exception is callable", "range is callable", "namespace() is mapping", "namespace is callable", "s.upper is callable", "d.items is callable", "d.items() is iterable", "d.items() is sequence", "d.keys() is mapping", "range(3) is sequence", "(1, 2) is sequence", "'<'|e is escaped", "html is escaped", "loop is defined", "caller is defined", "self is defined", "varargs is defined", "kwargs is defined", "joiner is defined", "strftime_now is defined",
        "dict is callable", "lipsum is defined", "cycler is defined", "debug is defined", "messages is defined", "tools is defined", "tools is none", "documents is none", "bos_token is defined", "add_generation_prompt", "add_generation_prompt is true", "messages", "messages[0].role", "messages|length", "messages[-1]['content']", "1.0 is integer", "1.0 is float", "true is integer", "true is number", "true is boolean", "1 is true", "big is integer",
    )]
    return found


def of_methods() -> list[str]:
    """Python's methods of strings, lists, dictionaries and numbers."""
    strings = [
        "upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip()", "split()", "rsplit()", "splitlines()", "isdigit()", "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()", "istitle()", "isnumeric()", "isdecimal()", "isascii()", "isidentifier()", "isprintable()", "encode()", "expandtabs()", "join(['a'])", "nope()",
        "format()", "__len__()",
    ]
    found = [f"{{{{ {v}.{m} }}}}" for m in strings for v in ("s", "e", "w", "ab", "num", "nl", "uni", "tabs", "'²'", "'½'", "'٣'", "'Ab'", "'AB1'", "'ﬁ'", "'ß'", "'Σας ΣΑΣ'", "'a\\x1cb'", "'_a1'")]
    found += [f"{{{{ {v}.{m} }}}}" for v, methods in {
        "w": ["split(' ')", "split(' ', 1)", "split(maxsplit=1)", "split(sep='o')", "split(none, 1)", "rsplit(' ', 1)", "rsplit(None, 1)", "rsplit(maxsplit=1)", "split('')", "split(1)", "partition(' ')", "rpartition(' ')", "partition('q')", "rpartition('q')", "partition('')", "startswith('one')", "startswith(('x', 'on'))", "startswith('wo', 4)", "startswith('ne', 1, 3)", "startswith(['a'])", "endswith('ee')", "endswith(('x', 'e'))",
              "endswith('two', 0, 7)", "startswith()", "startswith(1)", "startswith('')", "find('o')", "find('o', 1)", "find('q')", "rfind('e')", "index('t')", "index('q')", "rindex('t')", "count('e')", "count('')", "count('e', 3)", "replace('e', 'E')", "replace('e', 'E', 1)", "replace('', '-')", "replace('e', 'E', -1)", "replace('e', 'E', 0)", "replace('e', 'E', count=1)", "replace('e')", "strip('one')", "lstrip('on')", "rstrip('e')", "strip(none)", "strip('')", "strip(1)",
              "removeprefix('one')", "removesuffix('three')", "removeprefix('x')", "center(20)|replace(' ', '.')", "center(21, '*')", "ljust(16, '.')", "rjust(16, '.')", "zfill(18)", "ljust(3)", "rjust(2)", "ljust(16, 'ab')", "find('')", "translate({})", "join('ab')", "join([1])", "join({})", "split('two')[0]", "split()[-1]", "split(' ')|length", "upper().lower()", "title().split()|join", "format(1)", "splitlines(true)", "__class__", "format_map({})", "maketrans('a', 'b')", "split(' ', -1)", "split(' ', 0)", "split(none, 0)", "rsplit(' ', 0)", "count('e', -4)", "find('e', -4, -1)"],
        "num": ["zfill(6)", "lstrip('-')", "isdigit()", "lstrip('-').isdigit()", "isnumeric()"], "ab": ["split(',')", "rsplit(',', 2)", "split(',', 2)", "replace(',', '')", "strip('a')", "count(',')", "split(',,')"], "nl": ["splitlines()", "splitlines(keepends=true)", "splitlines(True)", "split('\\n')", "strip().split('\\n')[-1]", "expandtabs(2)", "replace('\\r', '')", "lstrip('\\n')"],
        "tabs": ["expandtabs(4)", "splitlines()", "split()"], "uni": ["encode('utf-8')", "find('🦀')", "center(30, '·')", "split('🦀')", "isalpha()", "casefold()"], "','": ["join(ws)", "join(d)", "join('abc')", "join(l)", "join(d.keys())", "join(ws|map('upper'))", "join([])", "join((1,))", "join(missing)", "join()"],
        "'{} {}'": ["format(1, 'a')", "format(1)", "format(*[1, 2])"], "'{0} {1} {0}'": ["format(1, 2)"], "'{a} {b!r} {c:>5} {d:.2f} {e:05d} {f:x} {g:,}'": ["format(a=1, b='q', c='r', d=1.234, e=42, f=255, g=1234567)"], "'{0.real}'": ["format(1)"], "'{0[a]}'": ["format({'a': 5})"], "'{{}} {:^7}|'": ["format('ab')"], "'{:<5}|{:+d}|{:%}|{:e}'": ["format('x', 3, 0.5, 12345.0)"], "'{}'": ["format(none)", "format([1, 'a'])", "format(1e16)", "format(true)", "format(d)"],
        "l": ["index(1)", "index(9)", "count(1)", "copy()", "append(4)", "insert(0, 1)", "remove(1)", "extend([1])", "pop()", "reverse()", "sort()", "nope()", "index(1, 1)", "index(3, 1)", "__len__()", "clear()"], "(1, 2, 1)": ["count(1)", "index(2)"], "mixed": ["index('a')", "count(true)", "count(1)", "index(none)"], "d": ["keys()|list", "values()|list", "items()|list", "get('b', 0)", "get('nope', {})", "get('a').get('x')", "copy()", "get()", "get(1)", "nope()", "keys()|join(',')", "fromkeys(['a'])", "get('a', {}).items", "get('nope', {}).get('x', 'y')", "items()|length", "keys()|length", "get(none)", "pop('b')", "setdefault('q', 1)", "popitem()"],
        "n": ["bit_length()", "is_integer()", "real", "numerator"], "f": ["is_integer()", "as_integer_ratio()", "hex()", "real"], "none_": ["foo()", "x"], "missing": ["upper()", "get('a')", "x.y"], "t": ["real"], "range(5)": ["start", "index(2)", "count(1)"], "{'items': 1}": ["items()|list", "items", "get('items')", "keys()|list"], "{'a': {'keys': 2}}": ["a.keys()|list", "a['keys']", "a.keys"],
    }.items() for m in methods]
    return found


STATEMENTS = [
    # Loops
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in [1, 1.0, true] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.last }} {% endfor %}", "{% for x in empty %}a{% else %}none{% endfor %}", "{% for x in l if x > 9 %}a{% else %}none{% endfor %}", "{% for x in missing %}a{% else %}none{% endfor %}",
    "{% for x in none_ %}a{% else %}none{% endfor %}", "{% for x in n %}a{% endfor %}", "{% for x in s|trim %}[{{ x }}]{% endfor %}", "{% for k in d %}{{ k }},{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d %}{{ k }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for a, in [[1]] %}{{ a }}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in 1, %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for x in l + [4] %}{{ x }}{{ loop.last }}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{{ loop.length }}{% endfor %}", "{% for x in l|reverse %}{{ x }}{{ loop.length }}{{ loop.last }}{% endfor %}", "{% for x in l|map('string') %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}", "{% for x in l if x is odd else [] %}{{ x }}{% endfor %}", "{% for x in (l if t else []) %}{{ x }}{% endfor %}", "{% for x in rows|selectattr('v') %}{{ x.name }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}e{% endfor %}", "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}", "{% for x in nested recursive %}{{ loop.depth0 }}{% if x is iterable %}[{{ loop(x) }}]{% endif %}{% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in l %}{{ outer.index }}{{ loop.index }},{% endfor %}{% endfor %}", "{% for x in l %}{{ loop.nope }}{{ loop.nope is defined }}{% endfor %}", "{% for x in l %}{{ x }}{% endfor %}{{ x }}", "{% set x = 9 %}{% for x in l %}{{ x }}{% endfor %}{{ x }}", "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}", "{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }},{% endfor %}{{ y }}",
    "{% for x in l %}{% set y = (y|default(0)) + x %}{{ y }},{% endfor %}", "{% set ns = namespace(y=0) %}{% for x in l %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}", "{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}", "{% set ns = namespace(a=1) %}{{ ns.b }}{{ ns.b is defined }}{{ ns['a'] }}", "{% set ns.a = 1 %}", "{% set d.b = 1 %}", "{% set ns = namespace(_a=1) %}", "{% set ns = namespace(a=1) %}{% set ns._b = 2 %}{{ ns._b }}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", "{% set loop = 1 %}{{ loop }}", "{% for loop in l %}{{ loop }}{% endfor %}", "{% for x in l %}{% if loop.first %}f{% elif loop.last %}l{% else %}m{% endif %}{% endfor %}", "{{ loop }}", "{{ loop.index }}", "{% for x in l %}{{ loop }}{% endfor %}",
    "{% for x in l %}{% set z = x %}{% if t %}{% set z = 8 %}{% endif %}{{ z }}{% endfor %}{{ z }}", "{% if t %}{% set q = 1 %}{% endif %}{{ q }}", "{% if u %}{% set q = 1 %}{% endif %}{{ q }}{{ q is defined }}", "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }}{% if j == 1 %}{% break %}{% endif %}{% endfor %}{% endfor %}", "{% break %}", "{% for x in l %}{{ loop.index is odd }}{{ loop.index % 2 == 0 }}{{ loop.index0 // 2 }}{% endfor %}",
    "{% set g_ = l|map('string') %}{{ g_|list }}{{ g_|list }}", "{% set g_ = d.items() %}{{ g_|list }}{{ g_|list }}", "{% set g_ = l|select('odd') %}{% for x in g_ %}{{ x }}{% endfor %}{% for x in g_ %}{{ x }}{% else %}none{% endfor %}", "{% for x in l|batch(2) %}{{ x }}{{ x|length }}{% endfor %}", "{% for x in ws|slice(2) %}{{ x }}{% endfor %}", "{% for g_ in rows|groupby('name') %}{{ g_.grouper }}:{{ g_.list|length }} {% endfor %}", "{% for k, vs in rows|groupby('name') %}{{ k }}:{{ vs|length }} {% endfor %}",
    "{% for x in l|sort(reverse=true) %}{{ x }}{% endfor %}", "{% for c in 'abc'|list %}{{ c }}{{ loop.cycle(1, 2) }}{% endfor %}", "{% for x in d.items()|sort %}{{ x[0] }}{% endfor %}", "{% for x in [1, 2]|map('string')|list + ['z'] %}{{ x }}{% endfor %}", "{% for m in messages[1:] %}{{ m }}{% else %}x{% endfor %}", "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}", "{% for i in range(l|length - 1, -1, -1) %}{{ l[i] }}{% endfor %}",
    # Conditions
    "{% if l %}a{% endif %}{% if empty %}b{% endif %}{% if ed %}c{% endif %}{% if e %}d{% endif %}{% if z %}e{% endif %}{% if 0.0 %}f{% endif %}{% if missing %}g{% endif %}{% if none_ %}h{% endif %}{% if () %}i{% endif %}{% if (0,) %}j{% endif %}{% if range(0) %}k{% endif %}", "{% if d.keys() %}a{% endif %}{% if ed.keys() %}b{% endif %}{% if ed.items() %}c{% endif %}{% if l|select('gt', 9) %}d{% endif %}{% if l|map('string') %}e{% endif %}",
    "{% if 1, %}a{% endif %}", "{% if n > 5 and m < 0 or missing.x %}a{% endif %}", "{% if u and missing.x.y %}a{% else %}b{% endif %}", "{% if not u %}{% if t %}x{% else %}y{% endif %}{% elif n %}z{% endif %}", "{% if s is defined and s is string and s|length > 3 %}a{% endif %}", "{% if namespace() %}a{% endif %}", "{% if ' ' %}a{% endif %}", "{% if 'x' in d %}a{% elif 'b' in d %}b{% endif %}", "{% if n %}a{% else if m %}b{% endif %}", "{% if %}a{% endif %}",
    "{% if raise_exception is defined %}a{% endif %}", "{% if t %}{{ raise_exception('bad ' ~ n) }}{% endif %}", "{% if n is not none and n is not string %}a{% endif %}", "{% if not missing is defined %}a{% endif %}", "{% if (not t) == u %}a{% endif %}", "{% if not t == u %}a{% endif %}", "{% if 'a' 'b' == 'ab' %}a{% endif %}", "{% if l[0] == 3 and l[-1] == 2 %}a{% endif %}",
    # Assignments
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = (1, 2) %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a = 1, %}{{ a }}", "{% set (a, b) = l[:2] %}{{ a }}{{ b }}", "{% set a, b = l %}{{ a }}", "{% set a = b = 1 %}", "{% set a %}x{{ n }}y{% endset %}[{{ a }}]", "{% set a %}\nx\n{% endset %}[{{ a }}]", "{% set a | upper %}x{{ n }}y{% endset %}{{ a }}", "{% set a | trim | upper %}  x {% endset %}[{{ a }}]", "{% set a %}<b>{% endset %}{{ a|e }}",
    "{% set a = 'x' if t else 'y' %}{{ a }}", "{% set a = [] %}{% for x in l %}{% set a = a + [x] %}{% endfor %}{{ a }}", "{% set a = {} %}{{ a }}", "{% set a = {'x': 1} %}{% set a = dict(a, y=2) %}{{ a }}", "{% set a = l %}{{ a is sameas l }}", "{% set true = 1 %}", "{% set n = n + 1 %}{{ n }}", "{% set a = none %}{{ a }}{{ a is none }}", "{% set a = 1 if u %}{{ a is defined }}[{{ a }}]", "{% set a = missing %}{{ a is defined }}", "{% set a = s | trim %}{{ a }}", "{%set a=1%}{{a}}", "{% set a.b = 1 %}",
    "{% set a = namespace(x=1, y={'k': 2}) %}{{ a.x }}{{ a.y.k }}{% set a.x = a.x * 3 %}{{ a.x }}", "{% set x = n %}{% with x = x + 1 %}{{ x }}{% endwith %}{{ x }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}", "{% with a = 1, 2 %}{{ a }}{% endwith %}", "{% with a, b = l[:2] %}{{ a }}{% endwith %}", "{% with a=n %}{% with b=a %}{{ b }}{% endwith %}{% endwith %}{{ b }}",
    # Macros
    "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(1) }}", "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=4, a=5) }}", "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}", "{% macro f(a, b=a + 1, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}{{ f(1, c=7) }}", "{% macro f(a=n) %}{{ a }}{% endmacro %}{{ f() }}", "{% macro f(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ f() }}", "{% macro f(a=none) %}{{ a }}{% endmacro %}{{ f() }}{{ f(none) }}",
    "{% macro f(a=1) %}{{ a }}{% endmacro %}{{ f(missing) }}{{ f(none) }}", "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ varargs }}{% endmacro %}{{ f(1) }}", "{% macro f(a) %}{{ varargs }}{% endmacro %}{{ f(1, 2, 3) }}", "{% macro f(a) %}{{ kwargs }}{% endmacro %}{{ f(1, b=2) }}", "{% macro f(a) %}{{ kwargs.items() | list }}{% endmacro %}{{ f(1, b=2) }}", "{% macro f(a) %}x{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}x{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}x{% endmacro %}{{ f(1, a=2) }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}x{{ n }}{% endcall %}", "{% macro f(a) %}<{{ caller(a, 2) }}>{% endmacro %}{% call(x, y) f(1) %}{{ x }}{{ y }}{% endcall %}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "{% macro f() %}{% if caller %}c{% else %}n{% endif %}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}", "{% macro f() %}{% endmacro %}{% call f() %}x{% endcall %}", "{% call range(2) %}{% endcall %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f() %}{{ g_() }}{% endmacro %}{% macro g_() %}g{% endmacro %}{{ f() }}", "{% macro f() %}{{ q }}{% endmacro %}{% set q = 1 %}{{ f() }}", "{% set q = 1 %}{% macro f() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ f() }}", "{% macro f() %}{% set q = 5 %}{% endmacro %}{{ f() }}{{ q }}", "{% for x in l %}{{ f(x) }}{% endfor %}{% macro f(a) %}x{% endmacro %}", "{% macro f(x) %}{{ x }}{% endmacro %}{% for x in l %}{{ f(x * 2) }}{{ x }}{% endfor %}", "{% for y in l %}{% macro f() %}{{ y }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% macro f() %}{{ loop is defined }}{% endmacro %}{% for x in l %}{{ f() }}{% endfor %}", "{% macro f(a) %}\n  {{ a }}\n{% endmacro %}[{{ f(1) }}]", "{% macro f(a) -%}\n  {{ a }}\n{%- endmacro %}[{{ f(1) }}]", "{% macro f() %}<b>{% endmacro %}{{ f() + '<' }}{{ f()|upper }}{{ f()|length }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f }}", "{% macro f(a, b=1) %}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}{{ f.catch_varargs }}{{ f.caller }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ [1, 2]|map('string')|map('upper')|list }}{{ f(f(1)) }}", "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 1, 'b': 2}) }}{{ f(1, **{'b': 3}) }}",
    "{% macro f(a=[]) %}{{ a }}{% endmacro %}{{ f() }}", "{% macro f(a, b=1, c) %}{% endmacro %}", "{% macro f(a,) %}{{ a }}{% endmacro %}{{ f(1) }}", "{% macro f() %}{% for x in l %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endfor %}{% endmacro %}{{ f() }}", "{% macro f() %}{{ messages|length }}{{ n }}{% endmacro %}{{ f() }}", "{% macro f(d) %}{% for k, v in d.items() %}{{ k }}{% if v is mapping %}({{ f(v) }}){% endif %}{% endfor %}{% endmacro %}{{ f(d) }}", "{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}",
    # Blocks, filters, includes and further statements
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter trim|upper %} a {% endfilter %}", "{% filter replace('a', 'b') %}banana{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% block x %}a{{ n }}{% endblock %}", "{% block x %}a{% endblock %}{{ self.x() }}", "{% include 'x' %}", "{% include 'x' ignore missing %}a", "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'x' import y %}", "{% do l.append(1) %}", "{% print n %}", "{% print n, 'x' %}", "{% autoescape true %}{{ html }}{% endautoescape %}", "{% autoescape false %}{{ html }}{% endautoescape %}",
    "{% autoescape true %}{{ html|safe }}{{ html ~ '<' }}{{ html|upper }}{% endautoescape %}", "{% generation %}a{{ n }}{% endgeneration %}b", "{% generation %}\na\n{% endgeneration %}\nb", "{%- generation -%} a {%- endgeneration -%} b", "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q }}", "{% set q = 0 %}{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}", "{% for x in l %}{% generation %}{% if x == 1 %}{% break %}{% endif %}{% endgeneration %}{{ x }}{% endfor %}",
    "{% trans %}a{% endtrans %}", "{% debug %}", "{% nope %}", "{% endif %}", "{% for x in l %}", "{% if t %}", "{{ n", "{{ n }", "{% if t %}a{% endfor %}", "{{ }}", "{{ n m }}", "{{ n | }}", "{{ (n }}", "{{ 'a }}", "{{ n.}}", "{{ n[ }}", "{{ 1 + }}", "{{ n is }}", "{% set %}", "{{ a b }}", "{{ n!}}", "{{ n & m }}", "{{ n ? 1 : 2 }}", "{{ n; }}", "{{ $n }}", "{{ `n` }}", "{{ n := 1 }}", "{{ lambda: 1 }}", "{{ [x for x in l] }}", "{{ n++ }}", "{{ n == }}", "{{ {'a'} }}", "{{ {a: 1} }}", "{{ f'a' }}", "{{ n if }}", "{{ not }}",
    "{% set c = cycler('a', 'b', 'c') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% for x in l %}{{ c.next() }}{% endfor %}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set ns = namespace(a={}) %}{% set ns.a = dict(ns.a, **{'k': 1}) %}{{ ns.a }}",
    # Strings
    *(f"{{{{ {text} }}}}" for text in (
        r"'a\nb'", r"'a\tb'", r"'a\\b'", r"'a\'b'", "\"a'b\"", "'a\"b'", r"'\x41'", r"'\u00e9'", r"'\U0001F980'", r"'\101'", r"'\0'", r"'\q'", r"'\N{BULLET}'", r"'\N{SNOWMAN}x'", r"'\ud83e\udd80'", r"'\ud800'", r"'\x4'", r"'\u12'", r"'\U00110000'", r"'\a\b\f\v\r'|tojson", "'a\nb'", "'é日本🦀'", r"'\é'", r"['\n', '\'', '\"', '\\']", r"'{{ x }}'", r"'{% if %}'", r"'{# c #}'", "'}}'", "'%}'", r"'\/'",
        r"'\d+\.'", r"'a\
b'", r"'<|im_start|>' ~ 'x' ~ '\n'", "['it\\'s']", "['\"']", "['it\\'s \"x\"']", "['\\x07\\x7f\\xa0\\u200b\\ue000\\U000e0001']", "{'a\\nb': 'c\\td'}", "['é', '日', '🦀', '\\u0301', '\\xad']", "[none, true, 1.0, 1e100, -0.0, 'x', (1,), ()]", "[missing]", "{'a': missing}", "(missing, 1)", "[range(2)]", "[d.items()]", "[l|map('string')]|length", "{'k': (1, [2, {'z': none}])}", "[1, [2, [3, []]]]", "'a' * 3", "3 * 'ab'", "[1] * 2", "(1,) * 2", "'a' * -1", "'a' * 1.0", "'x' * true",
    )),
    # White space
    *(text for text in (
        "a\n{% if t %}\nb\n{% endif %}\nc", "a\n  {% if t %}\n  b\n  {% endif %}\nc", "a {% if t %} b {% endif %} c", "a {%- if t -%} b {%- endif -%} c", "a\n\n{%- if t -%}\n\nb\n\n{%- endif -%}\n\nc", "a\n  {%+ if t %}\n  b\n{%+ endif %}\nc", "a\n  {% if t +%}\n  b\n  {% endif +%}\nc", "a {{- n -}} b", "a\n{{- n -}}\nb", "a\n  {{ n }}\nb", "a {{+ n +}} b", "{{ n }}\n", "{{ n }}\n\n", "\n{{ n }}", "a\n", "a\n\n", "a\r\nb\r\n", "{{ n }}\r\n", "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\nc",
        "a\rb", "{% if t %}\rb{% endif %}", "\t{% if t %}\tx{% endif %}", "a\t{% if t %}b{% endif %}", "  {% set x = 1 %}  \n  y", "  {# c #}\n  y", "a {# c #} b", "a {#- c -#} b", "a\n{# c #}\nb", "a\n  {#- c #}\nb", "{# a {{ b }} {% c %} #}x", "{# a\nb #}x", "{#\n#}\nx", "{##}x", "{#-#}x", "{# unclosed", "a #} b", "a }} b %} c", "a { b } c", "{ { n } }", "{{'{{'}}", "{{ '{%' }}x", "{% raw %}{{ n }}{% endraw %}", "{% raw %}\n{{ n }}\n{% endraw %}\nx", "{%- raw -%} {{ n }} {%- endraw -%} x", "a\n  {% raw %}\n  b\n  {% endraw %}\n  c",
        "{% raw %}{% if %}{# c #}{% endraw %}", "{% raw -%}  a  {%- endraw %}  b", "{%raw%}a{%endraw%}", "{% raw %}a{% endraw +%}\nb", "{%+ raw %}\na{%+ endraw %}", "{% raw %}unclosed", "x{% raw %}\n\n a{% endraw %}\n\ny", "a\x0b{% if t %}b{% endif %}", "a\n\u00a0{% if t %}b{% endif %}", "a\u2028{%- if t %}b{% endif %}", "{% if t -%}\u00a0\u3000b{% endif %}", "a\u3000 {{- n }}", "a\x1c{{- n }}", "a\x0c{% if t %}b{% endif %}", "{% if t %} {% endif %}\nx", "x {% if t %}\n\n\ny{% endif %}", "{{ n }}{% if t %}\n{% endif %}\n\nx", "\n\n{% if t %}\nx\n\n{% endif %}\n", "   {{ n }}", "   {%- if t %}\n   x{% endif %}",
        "{% for x in l %}\n{{ x }}\n{% endfor %}\nend", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\nend", "  {% for x in l %}\n    {{ x }}\n  {% endfor %}\nend", "{%- for x in l %}\n    {{- x }},\n{%- endfor %}", "{%if t%}a{%endif%}", "{%\nif t\n%}\na{%endif%}", "{{n}}{{n}}", "{{\nn\n}}", "{{-n}}", "{{ -n }}", "{{- -n }}", "{%-if t-%}a{%-endif-%}", "a{%-   if t   -%}b{% endif %}", "-{{ n }}-", "{{ n }}-", "a -{% if t %}- b{% endif %}", "{{ n -}}\n\n", "{{ n }}   \n", "#{# c #}#", "## x", "# for x in y", "// {{ n }}", "{{ n }}{# c #}\n\nb", "x {#+ c +#}\ny", "  {#+ c #}\ny", "{%+ set x = 1 +%}\n{{ x }}",
        "é{{ n }}日{% if t %}\n🦀{% endif %}", "\ufeff{{ n }}", "{{ n }}\x00", "{% if t %}a\n{%- else %}b{%- endif %}\n", "a\n {% if t %} \nb{% endif %}", "{% set x %} a {% endset -%} [{{ x }}]", "<s>{% if t %}\n\n{{- 'x' }}\n{% endif %}\n", "{{- n }}", "a\n\n{{- n }}", " \n {%- if t %}x{% endif %}", "{{ n\n}}\n{{ m }}", "{{ \"a\r\nb\" }}", "{{ 'a\rb'|tojson }}",
    )),
    # Prompts
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}", "{%- if tools %}{{- tools | tojson(indent=4) }}{%- else %}none{%- endif %}", "{{ (messages | selectattr('role', 'equalto', 'user') | list)[-1].content }}", "{{ messages | map(attribute='role') | unique | join(',') }}", "{{ messages[0]['content'][:2] ~ '...' }}", "{% if messages[0].role != 'user' %}{{ raise_exception('x') }}{% endif %}ok", "{{ messages|tojson }}", "{{ messages }}", "{% set first, rest = messages[0], messages[1:] %}{{ first.role }}{{ rest }}",
]


def at_random(generator: random.Random) -> str:
    """An expression of random operands, operators, filters and tests."""
    def value(depth: int) -> str:
        if depth == 0 or generator.random() < 0.2:
            return generator.choice(["n", "m", "z", "f", "g", "t", "none_", "num", "w", "e", "l", "ws", "empty", "d", "d.b", "missing", "1", "2", "0.5", "'a'", "'b,c'", "true", "none", "[1, 'x']", "(1, 2)", "{'k': n}", "rows[0]", "rows[1].v", "big", "tiny", "h", "3", "10"])
        inner = lambda: value(depth - 1)  # noqa: E731
        return generator.choice([
            lambda: f"{inner()} {generator.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {inner()}", lambda: f"{inner()} {generator.choice(['==', '!=', '<', '>=', 'in', 'not in'])} {inner()}", lambda: f"{inner()} {generator.choice(['and', 'or'])} {inner()}", lambda: f"({inner()})", lambda: f"not {inner()}", lambda: f"-{inner()}",
            lambda: f"{inner()} if {inner()} else {inner()}", lambda: f"[{inner()}, {inner()}]", lambda: f"({inner()}, {inner()})", lambda: f"({inner()})|{generator.choice(FILTERS)}", lambda: f"{inner()}|{generator.choice(FILTERS)}", lambda: f"({inner()}) is {generator.choice(['', 'not '])}{generator.choice(TESTS)}", lambda: f"({inner()})[{generator.choice(['0', '-1', '1:', ':-1', '::-1', inner()])}]",
            lambda: f"({inner()}).{generator.choice(METHODS)}", lambda: f"{{'a': {inner()}, {inner()}: 2}}", lambda: f"{inner()} {generator.choice(['<', '=='])} {inner()} {generator.choice(['<=', '!='])} {inner()}",
        ])()
    text = value(generator.choice([2, 3]))
    return generator.choice([f"{{{{ {text} }}}}", f"{{% if {text} %}}a{{% else %}}b{{% endif %}}", f"{{% for x in {text} %}}[{{{{ x }}}}]{{% endfor %}}", f"{{% set x = {text} %}}{{{{ x }}}}|{{{{ x|length if x is sequence }}}}"])


FILTERS = ["string", "length", "int", "float", "list", "first", "last", "join(',')", "tojson", "upper", "trim", "default('q')", "default('q', true)", "sort", "reverse|list", "unique|list", "abs", "round(1)", "map('string')|list", "select|list", "title", "replace('a', 'b')", "sum", "max", "min", "indent", "e", "items|list", "count", "string|length", "batch(2)|list"]
TESTS = ["defined", "none", "string", "number", "mapping", "iterable", "sequence", "odd", "true", "in [1, 'a']", "eq 1", "boolean", "integer", "float", "lt 2"]
METHODS = ["upper()", "split(',')", "strip()", "keys()|list", "items()|list", "get('a')", "get('k', 1)", "k", "b", "name", "startswith('a')", "replace('a', '')", "count('a')", "values()|list", "isdigit()", "index(1)"]
MESSAGES = [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Yes.\n"}, {"role": "user", "content": " ok "}]


def snippets(n_random: int, n_combined: int, seed: int) -> list[str]:
    """All snippets, each once."""
    generator = random.Random(seed)
    found = [*of_operators(), *of_filters(), *of_tests(), *of_methods(), *STATEMENTS, *(at_random(generator) for _ in range(n_random)), *(combined(n_combined, seed) if n_combined else [])]
    return list(dict.fromkeys(found))


def theirs(template: str) -> str | None:
    """What transformers renders; `None` if the template fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = dict(messages=json.loads(json.dumps(MESSAGES)), tools=None, documents=None, add_generation_prompt=True)
            text = _compile_jinja_template(template).render(**given, **SPECIAL_TOKENS, **json.loads(json.dumps(VARIABLES)))
        text.encode()
        return text
    except Exception:  # noqa: BLE001 - Jinja's and Python's errors alike
        return None


def in_folder(program: str, source: Path, templates: list[str]) -> list[tuple[str | None, str]]:
    """What the program prints for each template, and what it says if it refuses."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            (folder / file).symlink_to(source / file)
        (folder / "messages.json").write_text(json.dumps(MESSAGES), encoding="utf-8")
        command = [program, "generate", "--model", directory, "--print-prompt", "--messages", str(folder / "messages.json")]
        command += [part for name, value in VARIABLES.items() for part in ("--template-var", f"{name}={json.dumps(value)}")]
        for template in templates:
            (folder / "chat_template.jinja").write_bytes(template.encode())
            done = subprocess.run(command, capture_output=True, check=False)
            found.append((done.stdout.decode() if done.returncode == 0 else None, done.stderr.decode()))
    return found


def is_address(text: str | None) -> bool:
    """Whether a text has the address of a Python object, which no two runs share."""
    return text is not None and (" at 0x" in text or "<class '" in text)


def main() -> None:
    """Renders all, and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=0, help="of the random expressions")
    parser.add_argument("--random", type=int, default=4000, help="how many random expressions there are")
    parser.add_argument("--combined", type=int, default=0, help="how many random statements and expressions there are beside every filter with every value; 0 for none")
    parser.add_argument("--model", type=Path, default=ROOT / "tiny-gpt-text", help="a checkpoint whose tokenizer opens")
    parser.add_argument("--show", type=int, default=20, help="how many of each kind are printed")
    parser.add_argument("--write", type=Path, help="a file for all that is not equal, as lines of JSON")
    args = parser.parse_args()
    SPECIAL_TOKENS.update(AutoTokenizer.from_pretrained(args.model.resolve()).special_tokens_map)
    templates = snippets(args.random, args.combined, args.seed)
    parts = [templates[i::16] for i in range(16)]
    with ThreadPoolExecutor(2) as pool:
        rendered = list(pool.map(lambda part: in_folder(args.program, args.model.resolve(), part), parts))
    counts, shown, lines = Counter(), Counter(), []
    for part, results in zip(parts, rendered):
        for template, (text, said) in zip(part, results):
            expected = theirs(template)
            if is_address(expected):
                kind = "text with an address"
            elif text == expected:
                kind = "equal" if text is not None else "refused by both"
            elif text is None:
                kind = "refused by name" if any(words in said for words in REFUSALS) else "fails only here"
            else:
                kind = "renders only here" if expected is None else "differs"
            counts[kind] += 1
            if kind not in ("equal", "refused by both"):
                lines.append({"kind": kind, "template": template, "ours": text, "theirs": expected, "said": said.strip().splitlines()[-1:] })
            if kind in ("fails only here", "differs") and shown[kind] < args.show:
                shown[kind] += 1
                print(f"{kind}: {template!r}: {text if text is not None else said.strip()!r}, expected {expected!r}")
    if args.write:
        args.write.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(templates)} snippets: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    sys.exit(1 if counts["fails only here"] + counts["differs"] else 0)


if __name__ == "__main__":
    main()
