package device

import "slices"

// MaxSpans is how many spans of motion a device remembers (rule M2).
const MaxSpans = 32

// Span is a start of motion as it is remembered: 48 bits of the hash of region
// and span id, 48 of the occur time in ms, in 12 bytes, for a device has up to
// 32 of them. Times up to the year 9999 fit; that two of one device's spans
// share a hash within the hour that counts happens once in 10^13.
type Span [3]uint32

// NewSpan is the span of that hash (SpanOf) which began at occur.
func NewSpan(hash uint64, occur int64) Span {
	return Span{uint32(hash), uint32(hash>>32)&0xffff | uint32(occur>>32)<<16, uint32(occur)}
}

// Hash is the part of the hash that is kept.
func (s Span) Hash() uint64 { return uint64(s[0]) | uint64(s[1]&0xffff)<<32 }

// Occur is when it began.
func (s Span) Occur() int64 { return int64(s[1]>>16)<<32 | int64(s[2]) }

// same tells whether s is the span o again (rule M2).
func (s Span) same(o Span) bool {
	if s.Hash() != o.Hash() {
		return false
	}
	apart := s.Occur() - o.Occur()
	return -spanReach <= apart && apart <= spanReach
}

// Remembered adds s to spans, which are oldest first, in place where there is
// room; the oldest is forgotten when there are MaxSpans.
func Remembered(spans []Span, s Span) []Span {
	if len(spans) >= MaxSpans {
		copy(spans, spans[len(spans)-MaxSpans+1:])
		spans = spans[:MaxSpans-1]
	}
	return append(spans, s)
}

// motionStart is rules M1 to M3.
func (m *machine) motionStart() {
	in := &m.in
	switch {
	case in.Disabled:
		m.count(MotionDisabled)
		return
	case slices.ContainsFunc(in.Spans, in.Span.same):
		m.count(MotionDouble)
		return
	}
	stage := Due
	if in.At-in.Occur > lateLimit {
		stage = Late
	}
	m.effects = append(m.effects, Effect{Kind: Remember, Span: in.Span})
	m.notify(Notice{
		Type:      Alert,
		Stage:     stage,
		Since:     in.Occur,
		Decide:    in.At,
		Started:   in.At,
		Receive:   in.Receive,
		Corrected: in.Corrected,
		Trace:     in.Trace,
	})
}
