package device

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strconv"
)

// NotificationID names a notification (rule H9): a function of its arguments,
// the same in every run. since is in ms; region and span are empty but for
// alerts. It is 23 characters of the id alphabet and fits into a URL.
func NotificationID(account, device string, t Type, since int64, region, span string) string {
	return id('n', account, device, t.String(), strconv.FormatInt(since, 10), region, span)
}

// OutageID names an outage (rule H8) by since of its first Due, in ms.
func OutageID(account, device string, since int64) string {
	return id('o', account, device, strconv.FormatInt(since, 10))
}

// id hashes fields, none of which contains a zero byte, to 128 bits.
func id(prefix byte, fields ...string) string {
	text := make([]byte, 0, 256)
	for _, f := range fields {
		text = append(append(text, f...), 0)
	}
	sum := sha256.Sum256(text)
	name := [1 + 22]byte{prefix}
	base64.RawURLEncoding.Encode(name[1:], sum[:16])
	return string(name[:])
}

// RunOf is the hash of a source run, never 0 for a named one; an unnamed run,
// which lacks source or epoch, is 0. It is stored: never change it.
func RunOf(source, epoch string) uint64 {
	if source == "" || epoch == "" {
		return 0
	}
	if h := hash(source, epoch); h != 0 {
		return h
	}
	return 1
}

// SpanOf is the hash of a span of motion. A span without id has its occur time
// for one (rule M2). It is stored: never change it.
func SpanOf(region, span string, occur int64) uint64 {
	if span == "" {
		var ms [9]byte // nine bytes begin with a zero, as no id does
		binary.BigEndian.PutUint64(ms[1:], uint64(occur))
		return hash(region, string(ms[:]))
	}
	return hash(region, span)
}

// hash is FNV-1a over both, a zero byte between, with the finaliser of murmur3
// so that any 48 of its bits are as good as the rest.
func hash(a, b string) uint64 {
	const (
		offset = 14695981039346656037
		prime  = 1099511628211
	)
	h := uint64(offset)
	for i := range len(a) {
		h = (h ^ uint64(a[i])) * prime
	}
	h *= prime
	for i := range len(b) {
		h = (h ^ uint64(b[i])) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
