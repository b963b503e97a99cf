"""The ONNX functions that steps consist of, in Monograph's own domain.

A function imports the opset that it is written for: a decoder may have any other one.
"""

from __future__ import annotations

import onnx
import onnx.parser

from monograph.generate.rewrite.onnx_functions_plain import PLAIN
from monograph.generate.rewrite.onnx_functions_rows import ROWS
from monograph.generate.rewrite.surgery import OWN, graphs_of

_OPSET = 18
_HEAD = f'<domain: "{OWN}", opset_import: ["" : {_OPSET}, "{OWN}" : 1]>'

# The rows of the cache that the tokens of a step go to: [batch, S].
_PLACES = """
Places (tokens, position) => (places) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  axis = Constant <value_ints = [1]> ()
  sizes = Shape <start = 1, end = 2> (tokens)
  size = Squeeze (sizes)
  steps = Range (zero, size, one)
  column = Unsqueeze (position, axis)
  places = Add (column, steps)
}
"""

# The index of the last valid key, for GroupQueryAttention: [batch].
_LAST_KEY = """
LastKey (tokens, position) => (last) {
  one = Constant <value_ints = [1]> ()
  size = Shape <start = 1, end = 2> (tokens)
  sum = Add (position, size)
  least = Sub (sum, one)
  last = Cast <to = 6> (least)
}
"""

# 1 at valid cache rows, for graphs that need a mask: [batch, maximum].
_FILLED = """
Filled (tokens, position, maximum) => (mask) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  axis = Constant <value_ints = [1]> ()
  size = Shape <start = 1, end = 2> (tokens)
  sum = Add (position, size)
  column = Unsqueeze (sum, axis)
  keys = Range (zero, maximum, one)
  counts = Less (keys, column)
  mask = Cast <to = 7> (counts)
}
"""

# The same for graphs whose scores are masked anyway: a constant.
_ONES = """
Ones (tokens, maximum) => (mask) {
  batch = Shape <start = 0, end = 1> (tokens)
  shape = Concat <axis = 0> (batch, maximum)
  mask = ConstantOfShape <value = int64[1] {1}> (shape)
}
"""

# The last real row of each sequence: [batch, S, ...] -> [batch, 1, ...].
_LAST_ROW = """
LastRow (x, count) => (y) {
  one = Constant <value_ints = [1]> ()
  size = Shape <start = 1, end = 2> (x)
  single = Equal (size, one)
  y = If (single) <
    then_branch = only () => (same) { same = Identity (x) },
    else_branch = several () => (picked) {
      axes = Constant <value_ints = [1, 2]> ()
      index = Sub (count, one)
      least = Constant <value_ints = [0]> ()
      real = Max (index, least)
      places = Unsqueeze (real, axes)
      picked = GatherND <batch_dims = 1> (x, places)
    }
  >
}
"""

# Logits of one token, [batch, 1, vocabulary], as f32[batch, vocabulary].
_FLAT = """
Flat (logits) => (flat) {
  axes = Constant <value_ints = [1]> ()
  row = Squeeze (logits, axes)
  flat = Cast <to = 1> (row)
}
"""

_GREEDY = """
Greedy (logits) => (next) {
  next = ArgMax <axis = 1, keepdims = 1> (logits)
}
"""

# Marks the tokens of a sequence as seen.
_SEE = """
See (seen, tokens) => (now) {
  shape = Shape (tokens)
  ones = ConstantOfShape <value = uint8[1] {1}> (shape)
  now = ScatterElements <axis = 1> (seen, tokens, ones)
}
"""

# The same in a loop: a token fed to an ended row is not marked.
_SEE_GOING = """
SeeGoing (seen, tokens, ended) => (now) {
  one = Constant <value = uint8 {1}> ()
  axis = Constant <value_ints = [1]> ()
  column = Unsqueeze (ended, axis)
  before = GatherElements <axis = 1> (seen, tokens)
  marks = Where (column, before, one)
  now = ScatterElements <axis = 1> (seen, tokens, marks)
}
"""

# Makes seen tokens less likely: positive logits are divided, others multiplied.
_PENALISE = """
Penalise (logits, seen, penalty) => (changed) {
  zero = Constant <value_float = 0.0> ()
  had = Cast <to = 9> (seen)
  less = Less (logits, zero)
  multiplied = Mul (logits, penalty)
  divided = Div (logits, penalty)
  lower = Where (less, multiplied, divided)
  changed = Where (had, lower, logits)
}
"""

# A hash of 32 bits: each bit of the result depends on all bits of x.
_MIX = """
Mix (x) => (y) {
  s16 = Constant <value = uint32 {16}> ()
  s15 = Constant <value = uint32 {15}> ()
  m1 = Constant <value = uint32 {2146121005}> ()
  m2 = Constant <value = uint32 {2221713035}> ()
  a0 = BitShift <direction = "RIGHT"> (x, s16)
  a1 = BitwiseXor (x, a0)
  a2 = Mul (a1, m1)
  b0 = BitShift <direction = "RIGHT"> (a2, s15)
  b1 = BitwiseXor (a2, b0)
  b2 = Mul (b1, m2)
  c0 = BitShift <direction = "RIGHT"> (b2, s16)
  y = BitwiseXor (b2, c0)
}
"""

# Gumbel noise of tokens, a function of a row's key [batch, 1] and the token: the largest of logits
# plus noise is a sample of softmax(logits).
_TOKEN_NOISE = """
TokenNoise (tokens, key) => (noise) {
  s9 = Constant <value = uint32 {9}> ()
  spread = Constant <value = uint32 {2654435769}> ()
  half = Constant <value_float = 0.5> ()
  unit = Constant <value_float = 1.1920928955078125e-07> ()
  tokens32 = Cast <to = 12> (tokens)
  t0 = Mul (tokens32, spread)
  t1 = BitwiseXor (t0, key)
  t2 = monograph.Mix (t1)
  t3 = Add (t2, key)
  bits = monograph.Mix (t3)
  top = BitShift <direction = "RIGHT"> (bits, s9)
  whole = Cast <to = 1> (top)
  middle = Add (whole, half)
  u = Mul (middle, unit)
  l0 = Log (u)
  l1 = Neg (l0)
  l2 = Log (l1)
  noise = Neg (l2)
}
"""

# The noise of tokens whose seed is that of all rows: a function of batch row and position too.
_NOISE = """
Noise (tokens, position, seed) => (noise) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  axis = Constant <value_ints = [1]> ()
  sizes = Shape <start = 0, end = 1> (position)
  batch = Squeeze (sizes)
  rows = Range (zero, batch, one)
  seed32 = Cast <to = 12> (seed)
  position32 = Cast <to = 12> (position)
  rows32 = Cast <to = 12> (rows)
  h0 = monograph.Mix (seed32)
  h1 = Add (h0, position32)
  h2 = monograph.Mix (h1)
  h3 = Add (h2, rows32)
  h4 = monograph.Mix (h3)
  key = Unsqueeze (h4, axis)
  noise = monograph.TokenNoise (tokens, key)
}
"""

# Samples from all tokens.
_DRAW = """
Draw (logits, position, seed, temperature) => (next) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  scaled = Div (logits, temperature)
  sizes = Shape <start = 1, end = 2> (logits)
  size = Squeeze (sizes)
  tokens = Range (zero, size, one)
  noise = monograph.Noise (tokens, position, seed)
  score = Add (scaled, noise)
  next = ArgMax <axis = 1, keepdims = 1> (score)
}
"""

# Samples from the k most likely tokens.
_DRAW_TOP = """
DrawTop (logits, position, seed, temperature, k) => (next) {
  scaled = Div (logits, temperature)
  values, tokens = TopK <axis = 1> (scaled, k)
  noise = monograph.Noise (tokens, position, seed)
  score = Add (values, noise)
  choice = ArgMax <axis = 1, keepdims = 1> (score)
  next = GatherElements <axis = 1> (tokens, choice)
}
"""

# Samples from the most likely of k tokens whose probabilities sum to the share p.
_DRAW_NUCLEUS = """
DrawNucleus (logits, position, seed, temperature, k, p) => (next) {
  axis = Constant <value_int = 1> ()
  least = Constant <value_float = -inf> ()
  scaled = Div (logits, temperature)
  values, tokens = TopK <axis = 1> (scaled, k)
  shares = Softmax <axis = 1> (values)
  before = CumSum <exclusive = 1> (shares, axis)
  kept = Less (before, p)
  noise = monograph.Noise (tokens, position, seed)
  noisy = Add (values, noise)
  score = Where (kept, noisy, least)
  choice = ArgMax <axis = 1, keepdims = 1> (score)
  next = GatherElements <axis = 1> (tokens, choice)
}
"""

# The number of tokens that a loop iteration adds to each row: none if the row has ended.
_GOING = """
Going (ended) => (count) {
  on = Not (ended)
  count = Cast <to = 7> (on)
}
"""

# The same if all rows go on together.
_TOGETHER = """
Together (ended) => (count) {
  shape = Shape (ended)
  count = ConstantOfShape <value = int64[1] {1}> (shape)
}
"""

# The rows that have ended after these tokens, and whether any row goes on.
_ENDED = """
Ended (next, ended, stop) => (now, go) {
  axes = Constant <value_ints = [1]> ()
  all = Constant <value_ints = [0]> ()
  same = Equal (next, stop)
  number = Cast <to = 6> (same)
  most = ReduceMax <keepdims = 0> (number, axes)
  stopped = Cast <to = 9> (most)
  now = Or (ended, stopped)
  on = Not (now)
  going = Cast <to = 6> (on)
  any = ReduceMax <keepdims = 0> (going, all)
  go = Cast <to = 9> (any)
}
"""

# Writes the tokens of an iteration beside those of the iterations before.
_RECORD = """
Record (made, next, turn) => (now) {
  batch = Shape <start = 0, end = 1> (next)
  places = Expand (turn, batch)
  now = monograph.CacheUpdate <axis = 1> (made, next, places)
}
"""

_TURNED = """
Turned (turns) => (now) {
  one = Constant <value_ints = [1]> ()
  now = Add (turns, one)
}
"""

_ALL = (
    _PLACES, _LAST_KEY, _FILLED, _ONES, _LAST_ROW, _FLAT, _GREEDY, _SEE, _SEE_GOING, _PENALISE,
    _MIX, _TOKEN_NOISE, _NOISE, _DRAW, _DRAW_TOP, _DRAW_NUCLEUS, _GOING, _TOGETHER, _ENDED,
    _RECORD, _TURNED, *PLAIN, *ROWS,
)  # fmt: skip


def add_pieces(model: onnx.ModelProto) -> None:
    """Add the functions that a model's nodes call, and the import of their domain."""
    functions = {f.name: f for f in map(_parse, _ALL)}
    wanted = [n.op_type for n in model.graph.node if n.domain == OWN]
    for node in model.graph.node:
        for graph in graphs_of(node):
            wanted += [n.op_type for n in graph.node if n.domain == OWN]
    added: dict[str, None] = dict.fromkeys(f.name for f in model.functions if f.domain == OWN)
    before = set(added)
    while wanted:
        name = wanted.pop()
        if name in added or name not in functions:
            continue
        added[name] = None
        wanted += [n.op_type for n in functions[name].node if n.domain == OWN]
    model.functions.extend(functions[name] for name in sorted(set(added) - before))
    if not any(o.domain == OWN for o in model.opset_import):
        model.opset_import.add(domain=OWN, version=1)
    model.ir_version = max(model.ir_version, 8)


def _parse(text: str) -> onnx.FunctionProto:
    return onnx.parser.parse_function(f"{_HEAD}\n{text.strip()}")
