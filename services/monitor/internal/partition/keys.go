package partition

import (
	"bytes"
	"hash/maphash"
)

// keys gives each "account/device" a slot, a small number. All keys are in one
// piece of memory without pointers, so that a million devices cost the garbage
// collector nothing.
//
// Invariant: a slot is either free or has exactly one key, and a key one slot.
type keys struct {
	seed    maphash.Seed
	buckets []bucket // a power of two, at most three quarters full
	refs    []keyRef // by slot
	free    []int32  // slots without a key
	text    []byte
	garbage int // bytes of text that no slot has any more
}

// bucket is empty when slot is 0; the slot is one less.
type bucket struct {
	hash uint32
	slot int32
}

// keyRef is where a key lies in text; length is 0 for a free slot.
type keyRef struct {
	at            uint32
	length, slash uint8
}

func newKeys() keys {
	return keys{seed: maphash.MakeSeed(), buckets: make([]bucket, 64)}
}

// len is how many keys there are.
func (k *keys) len() int { return len(k.refs) - len(k.free) }

func (k *keys) key(slot int32) []byte {
	r := k.refs[slot]
	return k.text[r.at : r.at+uint32(r.length)]
}

// names are the two parts of a slot's key.
func (k *keys) names(slot int32) (account, device string) {
	key := k.key(slot)
	slash := int(k.refs[slot].slash)
	return string(key[:slash]), string(key[slash+1:])
}

// less orders by account, then device (rule T3); the whole key would not do,
// for "-" and "." are less than the slash.
func (k *keys) less(a, b int32) bool {
	ka, kb := k.key(a), k.key(b)
	sa, sb := k.refs[a].slash, k.refs[b].slash
	if c := bytes.Compare(ka[:sa], kb[:sb]); c != 0 {
		return c < 0
	}
	return bytes.Compare(ka[sa+1:], kb[sb+1:]) < 0
}

func (k *keys) hash(key []byte) uint32 { return uint32(maphash.Bytes(k.seed, key)) }

// find is the slot of key, or -1.
func (k *keys) find(key []byte) int32 {
	h := k.hash(key)
	mask := len(k.buckets) - 1
	for i := int(h) & mask; ; i = (i + 1) & mask {
		b := k.buckets[i]
		switch {
		case b.slot == 0:
			return -1
		case b.hash == h && bytes.Equal(k.key(b.slot-1), key):
			return b.slot - 1
		}
	}
}

// add gives key, which has none, a slot. slash is where it has its slash; a
// key has at most 255 bytes.
func (k *keys) add(key []byte, slash int) int32 {
	if 4*(k.len()+1) > 3*len(k.buckets) {
		k.grow()
	}
	ref := keyRef{at: uint32(len(k.text)), length: uint8(len(key)), slash: uint8(slash)}
	k.text = append(k.text, key...)
	var slot int32
	if n := len(k.free); n > 0 {
		slot = k.free[n-1]
		k.free = k.free[:n-1]
		k.refs[slot] = ref
	} else {
		slot = int32(len(k.refs))
		k.refs = append(k.refs, ref)
	}
	k.place(k.hash(key), slot)
	return slot
}

func (k *keys) place(h uint32, slot int32) {
	mask := len(k.buckets) - 1
	i := int(h) & mask
	for k.buckets[i].slot != 0 {
		i = (i + 1) & mask
	}
	k.buckets[i] = bucket{h, slot + 1}
}

func (k *keys) grow() {
	old := k.buckets
	k.buckets = make([]bucket, 2*len(old))
	for _, b := range old {
		if b.slot != 0 {
			k.place(b.hash, b.slot-1)
		}
	}
}

// remove frees slot, which has a key.
func (k *keys) remove(slot int32) {
	mask := len(k.buckets) - 1
	i := int(k.hash(k.key(slot))) & mask
	for k.buckets[i].slot != slot+1 {
		i = (i + 1) & mask
	}
	// Linear probing without tombstones: whatever may move back into the hole does.
	for j := (i + 1) & mask; k.buckets[j].slot != 0; j = (j + 1) & mask {
		home := int(k.buckets[j].hash) & mask
		if (j-home)&mask >= (j-i)&mask {
			k.buckets[i] = k.buckets[j]
			i = j
		}
	}
	k.buckets[i] = bucket{}
	k.garbage += int(k.refs[slot].length)
	k.refs[slot] = keyRef{}
	k.free = append(k.free, slot)
	if k.garbage > 1<<12 && 2*k.garbage > len(k.text) {
		k.compact()
	}
}

// compact copies the keys that are left.
func (k *keys) compact() {
	text := make([]byte, 0, len(k.text)-k.garbage)
	for slot := range k.refs {
		r := &k.refs[slot]
		if r.length == 0 {
			continue
		}
		key := k.text[r.at : r.at+uint32(r.length)]
		r.at = uint32(len(text))
		text = append(text, key...)
	}
	k.text, k.garbage = text, 0
}
