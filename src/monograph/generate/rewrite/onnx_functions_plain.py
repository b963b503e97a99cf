"""The functions of plain decoders' steps: their masks, positions and lengths."""

from __future__ import annotations

# Positions in a row that has padding in front: [batch, S].
_PLACES_FROM = """
PlacesFrom (tokens, position, start) => (places) {
  axis = Constant <value_ints = [1]> ()
  none = Constant <value_int = 0> ()
  whole = monograph.Places (tokens, position)
  first = Unsqueeze (start, axis)
  shifted = Sub (whole, first)
  places = Max (shifted, none)
}
"""

# The position of the farthest row and the following ones, for numbers that an export counts up from
# the length of its past.
_COUNTED = """
Counted (tokens, position, like) => (places) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  sizes = Shape <start = 1, end = 2> (tokens)
  size = Squeeze (sizes)
  steps = Range (zero, size, one)
  axes = Constant <value_ints = [0]> ()
  first = ReduceMax <keepdims = 0> (position, axes)
  sum = Add (first, steps)
  places = CastLike (sum, like)
}
"""

# A number that an export derives from the length of its past, given as `maximum - S`, corrected for
# the real past. The factor is its growth per row.
_SHIFTED = """
Shifted (x, factor, tokens, position, maximum) => (y) {
  axes = Constant <value_ints = [0]> ()
  first = ReduceMax <keepdims = 0> (position, axes)
  sizes = Shape <start = 1, end = 2> (tokens)
  size = Squeeze (sizes)
  told = Sub (maximum, size)
  less = Sub (first, told)
  rows = CastLike (less, factor)
  grown = Mul (rows, factor)
  typed = CastLike (grown, x)
  y = Add (x, typed)
}
"""

# The rows that a Slice takes, as indices; to the end of its operand.
_ROWS = """
Rows (first, last) => (rows) {
  one = Constant <value_int = 1> ()
  start = Cast <to = 7> (first)
  end = Cast <to = 7> (last)
  from = Squeeze (start)
  until = Squeeze (end)
  rows = Range (from, until, one)
}
"""

_ROWS_FROM = """
RowsFrom (first, tokens) => (rows) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  start = Cast <to = 7> (first)
  sizes = Shape <start = 1, end = 2> (tokens)
  size = Squeeze (sizes)
  steps = Range (zero, size, one)
  rows = Add (start, steps)
}
"""

# True if a key is visible: [batch, 1, S, maximum]. Padding before a row sees itself, so that it
# stays finite; no other query sees it.
_VISIBLE = """
Visible (tokens, position, start, maximum) => (visible) {
  zero = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  axes = Constant <value_ints = [1, 3]> ()
  all = Constant <value_ints = [1, 2, 3]> ()
  places = monograph.Places (tokens, position)
  wide = Unsqueeze (places, axes)
  first = Unsqueeze (start, all)
  least = Min (wide, first)
  keys = Range (zero, maximum, one)
  before = LessOrEqual (keys, wide)
  real = GreaterOrEqual (keys, least)
  visible = And (before, real)
}
"""

# A mask to add to scores that also hides the invisible keys.
_HIDE = """
Hide (mask, visible) => (hidden) {
  least = Constant <value_float = -inf> ()
  typed = CastLike (least, mask)
  hidden = Where (visible, mask, typed)
}
"""

# The shape of a past that leaves room for the new rows.
_PAST_SHAPE = """
PastShape (past, tokens) => (shape) {
  zeros = Constant <value_ints = [0, 0]> ()
  zero = Constant <value_ints = [0]> ()
  size = Shape <start = 1, end = 2> (tokens)
  less = Concat <axis = 0> (zeros, size, zero)
  whole = Shape (past)
  shape = Sub (whole, less)
}
"""

PLAIN = (
    _PLACES_FROM,
    _COUNTED,
    _SHIFTED,
    _ROWS,
    _ROWS_FROM,
    _VISIBLE,
    _HIDE,
    _PAST_SHAPE,
)
