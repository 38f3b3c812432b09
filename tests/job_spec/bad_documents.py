"""Files that are no YAML, or YAML that is no job spec."""

from itertools import pairwise

from tests.job_spec.rows import SPEC, Row

SHORT, ALIASES = "a smaller file", "write the values out instead of nested aliases"
TAGS = ("plain text, numbers, lists and mappings", "remove the tag")
START = ("keys and values: `task: ...`", "start from one of the examples in jobs/")
HEX = ("characters up to \\U0010FFFF", "write the character itself")
LETTERS = "abcdefghi"
# Nine lists, each of nine times the one before: 9^9 values.
LAUGHS = f"a: &a [{', '.join('x' * 9)}]\n" + "".join(
    f"{now}: &{now} [{', '.join([f'*{before}'] * 9)}]\n" for before, now in pairwise(LETTERS)
)
# Each level is short of the limit, together they are not.
TOWER = "".join(f"a{i}: &a{i} {'[' * 20}{f'*a{i - 1}' if i else 1}{']' * 20}\n" for i in range(4))

# fmt: off
DOCUMENTS = (
    Row(b"", "1:1", "the document is empty", *START),
    Row(b"# only a comment\n", "1:1", "the document is empty", *START),
    Row(b"- a\n- b\n", "1:1", "the document is not a mapping", *START),
    Row(b"text\n", "1:1", "the document is not a mapping", *START),
    Row(b"null\n", "1:1", "the document is not a mapping", *START),
    Row("---\nname: b\n", "4:1", "expected a single document in the stream, but found another document",
        "{yaml}", "{fix}"),
    Row("!foo\n" + SPEC, "1:1", "the tag !foo is not allowed", *TAGS),
    Row("%YAML 2.0\n---\n" + SPEC, "1:1", "found incompatible YAML document (version 1.* is required)",
        "{yaml}", "{fix}"),
    Row(f"%YAML {'9' * 5000}.1\n---\n" + SPEC, "1:7", "a number in an escape or a directive that is too large", *HEX),
    # Keys.
    Row("1: x\n", "4:1", "1: a key that is not text", "text as keys", 'write it in quotes: "1":'),
    Row("true: x\n", "4:1", "true: a key that is not text", "text as keys", 'write it in quotes: "true":'),
    Row("null: x\n", "4:1", "null: a key that is not text", "text as keys", 'write it in quotes: "null":'),
    Row("? [a, b]\n: x\n", "4:3", "a list as a key", "text as keys", "write the key as a word"),
    Row("? {a: b}\n: x\n", "4:3", "a mapping as a key", "text as keys", "write the key as a word"),
    Row("!!binary x: 1\n", "4:1", "x: the tag !!binary is not allowed", *TAGS),
    Row("name: b\n", "4:1", "name: the key appears twice",
        "once (first at job.yaml:1:1)", "remove one of the two"),
    Row("train: {epochs: 1, epochs: 2}\n", "4:20", "train.epochs: the key appears twice",
        "once (first at job.yaml:4:9)", "remove one of the two"),
    Row("train: {<<: {epochs: 3}}\n", "4:9", "train.<<: YAML 1.2 has no merge keys",
        "each key written out", "copy the keys here"),
    Row('"\\e[31m\\n": 1\n', "4:1", "\\x1b[31m\\n: unknown key",
        "known keys: {top}", "remove it, or see `drivetrain validate --schema`"),
    Row("k" * 500 + ": 1\n", "4:1", f"{'k' * 59}…: unknown key",
        "known keys: {top}", "remove it, or see `drivetrain validate --schema`"),
    # Aliases and depth.
    Row("data: &a {train: *a}\n", "3:7", "data.train: an alias that contains itself",
        "values without cycles", "write the value out"),
    Row("train: {epochs: &a [*a]}\n", "4:17", "train.epochs[0]: an alias that contains itself",
        "values without cycles", "write the value out"),
    Row("train: *nope\n", "4:8", "found undefined alias 'nope'", "{yaml}", "{fix}"),
    Row(LAUGHS.encode(), "1:4", "e[1][5][2][3]: more than 20000 values once aliases are expanded", SHORT, ALIASES),
    Row(TOWER.encode(), "1:19", f"a2{'[0]' * 50}: nested deeper than 50 levels once aliases are expanded",
        SHORT, ALIASES),
    Row("train: " + "[" * 10_000 + "\n", "4:57", "nested deeper than 50 levels",
        "{yaml}", "a job file needs at most six levels: close the brackets"),
    Row("train: " + "[" * 10_000 + "]" * 10_000 + "\n", "4:57", "nested deeper than 50 levels",
        "{yaml}", "a job file needs at most six levels: close the brackets"),
    Row("train: " + "{a: " * 10_000 + "\n", "4:201", "nested deeper than 50 levels",
        "{yaml}", "a job file needs at most six levels: close the brackets"),
    Row("model: [" + "a, " * 30_000 + "]\n", "4:59976", "more than 20000 values",
        "{yaml}", "keep data in separate files and put their paths into the job file"),
    Row(b"#" * (2**20 + 1), "1:1", "more than 1048576 bytes",
        "a spec of at most 1048576 bytes", "keep data in separate files and put their paths into the job file"),
    # Tags.
    Row("train: !!python/object/apply:os.system ['id']\n", "4:8",
        "train: the tag !!python/object/apply:os.system is not allowed", *TAGS),
    Row("train: {epochs: !!python/name:os.system x}\n", "4:17",
        "train.epochs: the tag !!python/name:os.system is not allowed", *TAGS),
    Row("train: !!binary aGVsbG8=\n", "4:8", "train: the tag !!binary is not allowed", *TAGS),
    Row("train: !!set {a, b}\n", "4:8", "train: the tag !!set is not allowed", *TAGS),
    Row("train: !foo {epochs: 3}\n", "4:8", "train: the tag !foo is not allowed", *TAGS),
    Row("train: {epochs: !foo 3}\n", "4:17", "train.epochs: the tag !foo is not allowed", *TAGS),
    Row("train: {epochs: !!int three}\n", "4:17", "train.epochs: 'three' under the tag !!int",
        "a value that fits the tag", "remove the tag"),
    Row("train: {epochs: !!int '1_0'}\n", "4:17", "train.epochs: '1_0' under the tag !!int",
        "a value that fits the tag", "remove the tag"),
    # Characters.
    Row(SPEC.encode() + b"train: {epochs: '\xff'}\n", "4:18", "a byte that is not UTF-8",
        "UTF-8 text", "save the file as UTF-8"),
    Row(SPEC.encode("utf-16"), "1:1", "a byte that is not UTF-8", "UTF-8 text", "save the file as UTF-8"),
    Row(b"\xef\xbb\xbf\xc3: 1\n", "1:1", "a byte that is not UTF-8", "UTF-8 text", "save the file as UTF-8"),
    Row("train:\n\tepochs: 3\n", "5:1", "found character '\\t' that cannot start any token", "{yaml}", "{fix}"),
    Row("train: a\x07b\n", "4:9", "the character U+0007 is not allowed in YAML", "printable text", "remove it"),
    Row("train: \x00\n", "4:8", "the character U+0000 is not allowed in YAML", "printable text", "remove it"),
    Row('train: "\\U00110000"\n', "4:11", "a number in an escape or a directive that is too large", *HEX),
    Row('train: "\\UFFFFFFFF"\n', "4:11", "a number in an escape or a directive that is too large", *HEX),
    Row('name: "\\ud800"\ntask: image-classification\ndata: {train: data}\n', "1:7",
        "name: '\\ud800' contains half of a surrogate pair",
        "whole characters", "write the character itself instead of \\u escapes"),
    # Numbers.
    Row(f"train: {{epochs: {'9' * 5000}}}\n", "4:17", "train.epochs: a number of 5000 characters",
        "numbers of at most 100 characters", "write a shorter number"),
    Row(f"train: {{epochs: 0x{'9' * 5000}}}\n", "4:17", "train.epochs: a number of 5002 characters",
        "numbers of at most 100 characters", "write a shorter number"),
    Row(f"limits: {{memory: {'9' * 400}g}}\n", "4:10", f"limits.memory: is '{'9' * 59}…'",
        "a size with its unit: 256m, 4g", "change the value"),
    Row(f"checkpoint: {{every: {'9' * 5000} steps}}\n", "4:14", f"checkpoint.every: is '{'9' * 59}…'",
        "epoch, steps such as 200 steps, or a duration such as 5m", "change the value"),
    # Brackets, quotes and indentation.
    Row("train: {epochs: 3\n", "5:1",
        "expected ',' or '}', but got '<stream end>', while parsing a flow mapping that starts at 4:8",
        "{yaml}", "{fix}"),
    Row("train: {epochs: 3]\n", "4:18", "expected ',' or '}', but got ']'", "{yaml}", "{fix}"),
    Row("train: }\n", "4:8", "expected the node content, but found '}'", "{yaml}", "{fix}"),
    Row("train: 'abc\n", "5:1", "found unexpected end of stream, while scanning a quoted scalar that starts at 4:8",
        "{yaml}", "{fix}"),
    Row("train: @x\n", "4:8", "found character '@' that cannot start any token", "{yaml}", "{fix}"),
    Row("  train: {}\n", "4:3",
        "expected <block end>, but found '<block mapping start>', while parsing a block mapping that starts at 1:1",
        "{yaml}", "{fix}"),
    Row("train\n", "5:1", "could not find expected ':', while scanning a simple key that starts at 4:1",
        "{yaml}", "{fix}"),
    Row("train: a: b\n", "4:9", "mapping values are not allowed here", "{yaml}", "{fix}"),
)
