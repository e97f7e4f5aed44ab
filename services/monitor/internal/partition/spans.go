package partition

import "github.com/tocsin/tocsin/services/monitor/internal/device"

// spanRef is where a device's spans lie in a spanStore; zero is "none".
type spanRef struct {
	at    uint32
	n     uint8
	class uint8
}

// classes are the sizes that a spanStore hands out: 0, 4, 8, 16, 32.
const classes = 5

func (r spanRef) room() int {
	if r.class == 0 {
		return 0
	}
	return 2 << r.class
}

// spanStore has the spans of those devices that have any, in one piece of
// memory without pointers: most devices never move.
type spanStore struct {
	mem  []device.Span
	free [classes][]uint32
}

// get are the spans of ref, oldest first, good until the next put.
func (s *spanStore) get(ref spanRef) []device.Span {
	return s.mem[ref.at : ref.at+uint32(ref.n)]
}

// put replaces what ref has by list, which is not from the store itself.
func (s *spanStore) put(ref spanRef, list []device.Span) spanRef {
	class := uint8(0)
	for (spanRef{class: class}).room() < len(list) {
		class++
	}
	if class != ref.class {
		if ref.class != 0 {
			s.free[ref.class] = append(s.free[ref.class], ref.at)
		}
		ref = s.take(class)
	}
	ref.n = uint8(len(list))
	copy(s.mem[ref.at:], list)
	return ref
}

func (s *spanStore) take(class uint8) spanRef {
	ref := spanRef{class: class}
	if class == 0 {
		return ref
	}
	if n := len(s.free[class]); n > 0 {
		ref.at = s.free[class][n-1]
		s.free[class] = s.free[class][:n-1]
		return ref
	}
	ref.at = uint32(len(s.mem))
	for range ref.room() {
		s.mem = append(s.mem, device.Span{})
	}
	return ref
}
