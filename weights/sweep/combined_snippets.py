"""Snippets of Jinja2 for `snippets.py`: every filter with arguments of all kinds, formats, methods, comparisons of views, and statements of these."""

import random
TEXTS = ["s","e","w","ab","num","html","nl","uni","tabs","'a-b c'","'The quick-brown fox -- jumped'","'x'","'10'","'ÉTÉ à'","messages[0].content","'%s'","'{}'"]
NUMBERS = ["n","m","z","f","g","h","tiny","big","w_","1","0","-1","2.5","10","3","1e3","t","u"]
LISTS = ["l","ws","mixed","empty","nested","rows","(1, 2)","('a',)","()","[1, 'x', none]","range(4)","d.items()","d.keys()","d.values()","l|map('string')","ws|select('string')","'a,b,c'.split(',')","messages","[[1, 2], [0, 5]]"]
MAPPINGS = ["d","ed","{'a': 1}","{'k': [1, 2], 'j': none}","{1: 2}","rows[0]","messages[1]","dict(a=1, b='c')"]
OTHERS = ["none_","missing","none","true","namespace(a=1)"]
ALL = TEXTS + NUMBERS + LISTS + MAPPINGS + OTHERS
ARGUMENTS = ["1","2","0","-1","'a'","','","' '","'x y'","none","true","false","5","10","''","'-'","missing","n","2.5","[1]","s","'name'","'v'"]
FILTERS = "abs attr batch capitalize center count d default dictsort e escape filesizeformat first float forceescape format groupby indent int items join last length list lower map max min pprint reject rejectattr replace reverse round safe select selectattr slice sort string striptags sum title tojson trim truncate unique upper urlencode wordcount wordwrap xmlattr".split()
NAMED = {"batch":["linecount=2","fill_with='x'"],"center":["width=9"],"default":["default_value='z'","boolean=true"],"d":["boolean=true"],"dictsort":["case_sensitive=true","by='value'","reverse=true"],"filesizeformat":["binary=true"],"float":["default=1.5"],"groupby":["attribute='name'","default='q'","case_sensitive=true"],"indent":["width=2","first=true","blank=true"],"int":["default=3","base=16"],"join":["d='+'","attribute='name'"],"map":["attribute='name'","default='q'"],"max":["attribute='v'","case_sensitive=true"],"min":["attribute='v'"],"replace":["count=1"],"round":["precision=1","method='ceil'","method='floor'"],"slice":["slices=2","fill_with='q'"],"sort":["reverse=true","case_sensitive=true","attribute='name'","attribute='nope'","attribute='v'"],"sum":["attribute='v'","start=3"],"tojson":["indent=2","ensure_ascii=true","sort_keys=true","separators=(',', ':')"],"trim":["chars='ab'"],"truncate":["length=5","killwords=true","end='~'","leeway=0"],"unique":["case_sensitive=true","attribute='name'"],"wordwrap":["width=6","break_long_words=false","wrapstring='|'","break_on_hyphens=false"],"xmlattr":["autospace=false"]}
PLACED = {"map":["'upper'","'string'","'length'","'default', 'q'","'int'","'replace', 'a', 'b'","'join', ','","'first'","'abs'","'list'","attribute='v'","attribute='name'"],"select":["","'odd'","'string'","'gt', 1","'defined'","'in', [1, 'a']","'mapping'","'none'"],"reject":["","'odd'","'string'","'none'","'eq', 1"],"selectattr":["'v'","'name', 'eq', 'x'","'v', 'gt', 1","'nope', 'defined'","'role', 'equalto', 'user'"],"rejectattr":["'v'","'name', 'in', ['x']","'nope'"],"groupby":["'name'","'v'","0","'role'"],"attr":["'upper'","'items'","'a'","'b'","'real'","'name'"],"format":["1","'a', 2","a=1"],"replace":["'a', 'b'","' ', ''","'a', 'b', 1","'', '.'"],"batch":["2","3, 'x'","2, none"],"slice":["2","3, '-'"],"indent":["2","4, true","'> '","0, true, true"],"truncate":["5","8, true","6, false, '..'","6, true, '', 0"],"wordwrap":["4","6, false","5, true, '/'","9","12"],"sort":["true","false, true","attribute='v,name'","attribute=1","attribute='1'"],"round":["1","0, 'ceil'","-1","2, 'floor'"],"center":["8","11","0"],"int":["7","0, 16","0, 2","0, 0"],"float":["1","'q'"],"join":["', '","'-', 'name'","none","n"],"tojson":["2","true","none, 1","true, 2"],"dictsort":["true","false, 'value'","true, 'key', true"],"sum":["'v'","start=[]","'v', 2"],"max":["true","attribute='name'"],"min":["attribute=0"],"unique":["true","false, 'name'"],"default":["'q'","'q', true","none, true"],"trim":["'a '","none"],"xmlattr":["true"],"filesizeformat":["true"]}
TESTS = ["boolean","callable","defined","divisibleby 2","divisibleby(0)","eq 1","eq('a')","even","false","filter","float","ge 1","gt 'a'","in [1, 'a', none]","in s","integer","iterable","le 2","lower","lt 3","mapping","ne none","none","number","odd","sameas none","sameas n","sequence","string","test","true","undefined","upper","escaped"]
OF_TEXTS = {"capitalize":[""],"casefold":[""],"center":["9","9, '*'"],"count":["'a'","' ', 1"],"encode":[""],"endswith":["'c'","('c', ' ')","'a', 0, 3"],"expandtabs":["","3"],"find":["'o'","'o', 2","'q'"],"format":["","1, 2","a=1","*[1, 2]"],"index":["'o'"],"isalnum":[""],"isalpha":[""],"isdigit":[""],"islower":[""],"isspace":[""],"istitle":[""],"isupper":[""],"isidentifier":[""],"join":["ws","['a', 'b']","d","'xyz'","l"],"ljust":["8","8, '.'"],"lower":[""],"lstrip":["","'ab'","none"],"partition":["' '","','"],"removeprefix":["'a'"],"removesuffix":["'c'"],"replace":["'a', 'b'","'a', 'b', 1","' ', ''"],"rfind":["'o'"],"rindex":["'o'"],"rjust":["8, '0'"],"rpartition":["','"],"rsplit":["","',', 1","none, 1"],"rstrip":["","'c'"],"split":["","','","',', 1","none, 1","maxsplit=1","sep=' '"],"splitlines":["","true"],"startswith":["'a'","('x', 'a')","'b', 1"],"strip":["","'a '"],"swapcase":[""],"title":[""],"upper":[""],"zfill":["6"],"translate":["{97: 'x'}"]}
OF_LISTS = {"count":["1","'a'","none"],"index":["1","1, 1","'zz'"],"copy":[""],"append":["1"],"__len__":[""]}
OF_MAPPINGS = {"get":["'a'","'zz'","'zz', 1","'a', none"],"items":[""],"keys":[""],"values":[""],"copy":[""],"update":["{}"],"pop":["'a'"]}
PERCENT = ["%d","%5d","%-5d|","%05d","%+d","% d","%x","%X","%o","%#x","%e","%.2e","%f","%.1f","%8.3f","%g","%.3g","%s","%10s","%-10s|","%.2s","%r","%c","%i","%%","%5.1f%%","%a","%u","%G","%E","%10.4s|","%#o","%+.2f","%(a)s","%(a)05d"]
BRACES = ["{}","{0}","{1}{0}","{:>8}","{:<8}|","{:^9}|","{:*^9}","{:.2f}","{:8.3f}","{:05d}","{:+d}","{:,}","{:x}","{:#x}","{:b}","{:o}","{:e}","{:%}","{:.1%}","{!r}","{!s:>6}","{a}","{a:>5}","{0[0]}","{a[b]}","{:g}","{:_}","{:s}","{:.3s}","{:c}","{:n}","{:=+8d}","{:08.2f}","{:,.2f}","{{{}}}","{:>{}}"]
STATEMENTS = ["{{% for x in {a} %}}{{{{ loop.index }}}}{{{{ x }}}}{{% if not loop.last %}},{{% endif %}}{{% endfor %}}","{{% for x in {a} if x is {t} %}}{{{{ x }}}}{{% else %}}none{{% endfor %}}","{{% for k, v in {a} %}}{{{{ k }}}}={{{{ v }}}};{{% endfor %}}","{{% for k, v in ({d}).items() %}}{{{{ k }}}}={{{{ v|tojson }}}};{{% endfor %}}","{{% set x = {a} %}}{{{{ x }}}}","{{% set x, y = {a} %}}{{{{ x }}}}{{{{ y }}}}","{{% if {a} %}}1{{% elif {b} %}}2{{% else %}}3{{% endif %}}","{{% macro f(a, b={a}) %}}[{{{{ a }}}}{{{{ b }}}}]{{% endmacro %}}{{{{ f({b}) }}}}{{{{ f({a}, b={b}) }}}}","{{% set ns = namespace(x={a}) %}}{{% for i in {b} %}}{{% set ns.x = i %}}{{% endfor %}}{{{{ ns.x }}}}","{{% filter upper %}}{{{{ {a} }}}}{{% endfilter %}}","{{% set x %}}{{{{ {a} }}}}{{% endset %}}{{{{ x|length }}}}{{{{ x }}}}","{{% with x = {a}, y = {b} %}}{{{{ x }}}}{{{{ y }}}}{{% endwith %}}","{{% for x in {a} %}}{{% if loop.index > 2 %}}{{% break %}}{{% endif %}}{{{{ loop.revindex }}}}{{{{ x }}}}{{% endfor %}}","{{% for x in {a} %}}{{{{ loop.changed(x) }}}}{{{{ loop.cycle('a', 'b') }}}}{{% endfor %}}","{{% set c = cycler({a}, {b}) %}}{{{{ c.next() }}}}{{{{ c.current }}}}{{{{ c.next() }}}}{{{{ c.next() }}}}{{{{ c.reset() }}}}{{{{ c.current }}}}","{{% set j = joiner({s}) %}}{{% for x in {a} %}}{{{{ j() }}}}{{{{ x }}}}{{% endfor %}}","{{% macro f(a) %}}{{{{ a }}}}|{{{{ caller({a}) }}}}{{% endmacro %}}{{% call(q) f({b}) %}}<{{{{ q }}}}>{{% endcall %}}","{{% macro f(x) %}}({{{{ x }}}}){{% endmacro %}}{{% set ns = namespace(f=f) %}}{{{{ ns.f({a}) }}}}{{% set q = {{'f': f}} %}}{{{{ q.f({a}) }}}}{{{{ q['f']({b}) }}}}","{{% for x in {a} recursive %}}{{% if x is iterable and x is not string and loop.depth < 3 %}}<{{{{ loop(x) }}}}>{{% else %}}{{{{ x }}}}{{% endif %}}{{% endfor %}}"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
VIEWS = ["d.items()", "d.keys()", "d.values()", "ed.keys()", "l", "rows[0].items()", "dict(d, q=1).keys()", "['a']"]
# What formats are filled with, by position or by name.
FOR_PERCENT = ["n", "m", "f", "s", "none", "l", "(1,)", "d", "true", "big", "h", "'é'", "{'a': 7}", "65"]
FOR_BRACES = ["n", "m, 8", "f", "s", "none, 1", "l", "1, 2", "a=n", "a=d", "true", "big, 12", "h", "'é', 'b'", "1234567.891"]


def combined(n: int, seed: int) -> list[str]:
    """All filters of all values, twice with other arguments, formats and methods; and `n` random expressions and statements."""
    generator = random.Random(seed)
    choice = generator.choice

    def filtered(name: str) -> str:
        """A filter with arguments, most of them fitting."""
        draw = generator.random()
        if name in PLACED and draw < 0.75:
            return f"{name}({choice(PLACED[name])})"
        if name in NAMED and draw < 0.9:
            return f"{name}({', '.join(generator.sample(NAMED[name], generator.randint(1, len(NAMED[name]))))})"
        return f"{name}({choice(ARGUMENTS)})" if draw < 0.94 else name

    def called(methods: dict, values: list[str]) -> str:
        method = choice(list(methods))
        return f"({choice(values)}).{method}({choice(methods[method])})"

    def value(depth: int = 1) -> str:
        draw = generator.random()
        if depth == 0 or draw < 0.35:
            return choice(ALL)
        inner = lambda: value(depth - 1)  # noqa: E731
        if draw < 0.65:
            name = choice(FILTERS)
            return f"({inner()})|{filtered(name) if name in PLACED and generator.random() < 0.75 else name}"
        if draw < 0.83:
            return called(*choice([(OF_TEXTS, TEXTS), (OF_TEXTS, TEXTS), (OF_MAPPINGS, MAPPINGS), (OF_LISTS, LISTS)]))
        if draw < 0.88:
            return f"({inner()})[{choice(['0', '-1', '1:', '::-1', ':2', '::2', '1:-1', chr(39) + 'a' + chr(39), 'n'])}]"
        if draw < 0.93:
            return f"({inner()}) {choice(OPERATORS)} ({inner()})"
        if draw < 0.96:
            return f"({inner()}) is {choice(['', 'not '])}{choice(TESTS)}"
        return f"({inner()}) if ({inner()}) else ({inner()})"

    found = [f"({v})|{filtered(name)}" for name in FILTERS for v in ALL for _ in range(2)]
    found += [f"({one})|list" for one in found[::3]]
    found += [f"'{form}' % {v}" for form in PERCENT for v in FOR_PERCENT]
    found += [f"'{form}'.format({v})" for form in BRACES for v in FOR_BRACES]
    found += [f"({v}).{method}({a})" for method, arguments in OF_TEXTS.items() for a in arguments for v in TEXTS]
    found += [f"{a} {operator} {b}" for operator in ("<", "<=", ">", ">=", "==", "!=", "in", "+", "-") for a in VIEWS for b in VIEWS]
    found += [value(choice([1, 2, 2, 3])) for _ in range(n * 6 // 10)]
    statements = [choice(STATEMENTS).format(a=value(), b=value(), d=choice(MAPPINGS), t=choice(TESTS), s=choice(TEXTS)) for _ in range(n - n * 6 // 10)]
    return [f"{{{{ {one} }}}}" for one in found] + statements
