// Package codec is the only place that knows how a device event (an ETag) is
// written: as JSON, the form callers and files use, and as protobuf, the value
// of a Kafka record. It says what a well-formed event is and nothing about what
// an event means: times are read and cut to milliseconds but never judged
// (rule T2), bits are never read (rule S1).
//
// Invariant: every event that is returned passes ValidateEvent; one that was
// read from JSON comes back equal from its JSON and from its protobuf.
package codec

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
)

// TypeEvent is the value of a record's header "type" for a device event.
const TypeEvent = "tocsin.event.v1.DeviceEvent"

// MaxID is the longest id, in bytes (contract: Ingest).
const MaxID = 64

// FieldError says which field of an event is wrong, and how. Field is its JSON
// name, nested ones with a dot ("status.bits"); it is empty when the text as a
// whole cannot be read.
type FieldError struct {
	Field  string
	Reason string
}

func (e *FieldError) Error() string {
	if e.Field == "" {
		return e.Reason
	}
	return e.Field + ": " + e.Reason
}

func fieldError(field, format string, args ...any) error {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// idBytes are the bytes an id is made of.
var idBytes = func() (set [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-") {
		set[c] = true
	}
	return set
}()

// ValidID reports whether id is 1 to MaxID of A-Z a-z 0-9 . _ : - (contract:
// Ingest). A slash is none of them, so keys split without doubt.
func ValidID(id string) bool {
	if len(id) == 0 || len(id) > MaxID {
		return false
	}
	for i := range len(id) {
		if !idBytes[id[i]] {
			return false
		}
	}
	return true
}

func checkID(field, id string, required bool) error {
	if id == "" {
		if required {
			return fieldError(field, "is missing")
		}
		return nil
	}
	if !ValidID(id) {
		return fieldError(field, "%s is no id: 1 to %d of A-Z a-z 0-9 . _ : - are allowed", quote(id), MaxID)
	}
	return nil
}

// quote shows a value of a caller in an error, shortened.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// ValidateEvent says what is wrong with the form of an event, as a
// *FieldError: an id that is missing or has other characters, a receive time
// that no spool or refresh explains, a motion without a phase, a number out of
// range. An event without a kind is well formed: it may come from a newer
// schema. Safe for concurrent use, as everything in this package.
func ValidateEvent(ev *eventv1.DeviceEvent) error {
	for _, id := range [...]struct {
		field, value string
		required     bool
	}{
		{"accountId", ev.GetAccountId(), true},
		{"deviceId", ev.GetDeviceId(), true},
		{"eventId", ev.GetEventId(), false},
		{"sourceId", ev.GetSourceId(), false},
		{"sourceEpoch", ev.GetSourceEpoch(), false},
		{"code", ev.GetCode(), false},
	} {
		if err := checkID(id.field, id.value, id.required); err != nil {
			return err
		}
	}
	if ev.ReceiveTime != nil && !ev.Spooled && !ev.Restated {
		return fieldError("receiveTime", "is only for an event that is spooled or restated")
	}
	switch {
	case ev.GetStatus() != nil:
		s := ev.GetStatus()
		if s.UnknownState != "" {
			return checkID("status.state", s.UnknownState, true)
		}
	case ev.GetMotion() != nil:
		m := ev.GetMotion()
		if err := checkID("motion.spanId", m.SpanId, false); err != nil {
			return err
		}
		if err := checkID("motion.regionId", m.RegionId, false); err != nil {
			return err
		}
		if m.Phase == eventv1.Motion_NONE {
			return fieldError("motion.phase", "is missing: START, UPDATE or END")
		}
		if math.IsNaN(m.Score) || m.Score < 0 || m.Score > 1 {
			return fieldError("motion.score", "must be from 0 to 1")
		}
	}
	return nil
}

// EncodeEvent is the value of the event's Kafka record.
func EncodeEvent(ev *eventv1.DeviceEvent) ([]byte, error) {
	value, err := ev.MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("encode event %s: %w", ev.GetEventId(), err)
	}
	return value, nil
}

var errEmptyValue = errors.New("decode event: the value is empty")

// DecodeEvent reads the value of a Kafka record and validates it. Fields of a
// newer schema are kept and ignored.
func DecodeEvent(value []byte) (*eventv1.DeviceEvent, error) {
	if len(value) == 0 {
		return nil, errEmptyValue
	}
	ev := new(eventv1.DeviceEvent)
	if err := ev.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	if err := ValidateEvent(ev); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	return ev, nil
}

// DeviceKey is the key of everything about a device: "account/device".
func DeviceKey(account, device string) string { return account + "/" + device }

// SplitKey takes a device's key apart. False: it is no device's key.
func SplitKey(key string) (account, device string, ok bool) {
	account, device, found := strings.Cut(key, "/")
	if !found || !ValidID(account) || !ValidID(device) {
		return "", "", false
	}
	return account, device, true
}

// Seconds of the first and after the last instant that a protobuf timestamp
// may hold: the years 1 to 9999.
const (
	minSeconds = -62135596800
	endSeconds = 253402300800
)

// UnixMilli is a timestamp cut to milliseconds (rule T1). False: it is absent,
// or no instant of the years 1 to 9999, which is unreadable to rule T2.
func UnixMilli(ts *timestamppb.Timestamp) (int64, bool) {
	if ts == nil || ts.Seconds < minSeconds || ts.Seconds >= endSeconds || ts.Nanos < 0 || ts.Nanos >= 1e9 {
		return 0, false
	}
	return ts.Seconds*1000 + int64(ts.Nanos)/1e6, true
}

// Timestamp is an instant given in milliseconds since 1970.
func Timestamp(unixMilli int64) *timestamppb.Timestamp {
	seconds := unixMilli / 1000
	rest := unixMilli % 1000
	if rest < 0 {
		seconds--
		rest += 1000
	}
	return &timestamppb.Timestamp{Seconds: seconds, Nanos: int32(rest) * 1e6}
}

// FormatTime writes an instant as RFC 3339 in UTC with milliseconds, the way
// the header occur-time and our JSON have it.
func FormatTime(unixMilli int64) string {
	return string(appendTime(make([]byte, 0, len(timeLayout)), unixMilli))
}

const timeLayout = "2006-01-02T15:04:05.000Z"

func appendTime(dst []byte, unixMilli int64) []byte {
	return time.UnixMilli(unixMilli).UTC().AppendFormat(dst, timeLayout)
}

// ParseTime reads an RFC 3339 time, cut to milliseconds. Nothing else is a
// time: a number could be seconds, milliseconds or microseconds.
func ParseTime(text string) (unixMilli int64, err error) {
	t, err := time.Parse(time.RFC3339, text)
	// time.Parse also takes "T1:02:03" and a comma for the point.
	if err != nil || text[13] != ':' || text[19] == ',' || t.Unix() < minSeconds || t.Unix() >= endSeconds {
		return 0, fmt.Errorf("%s is no RFC 3339 time such as 2026-03-01T12:00:00.250Z", quote(text))
	}
	return t.UnixMilli(), nil
}
