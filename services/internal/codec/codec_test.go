package codec

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
)

// Proves that an event survives protobuf, and that bytes which are no event
// are refused with a reason rather than guessed at.
func TestDecodeEvent(t *testing.T) {
	want := &eventv1.DeviceEvent{
		EventId: "e1", AccountId: "a", DeviceId: "d", Sequence: 7, OccurTime: Timestamp(1_772_366_400_250),
		Kind: &eventv1.DeviceEvent_Status{Status: &eventv1.Status{Bits: 1441847}},
	}
	value, err := EncodeEvent(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeEvent(value)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}

	noDevice, err := EncodeEvent(&eventv1.DeviceEvent{AccountId: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		value  []byte
		reason string
	}{
		"null":         {nil, "empty"},
		"two 0xff":     {[]byte{0xff, 0xff}, "decode event: "},
		"JSON":         {[]byte(`{"accountId":"a","deviceId":"d"}`), "decode event: "},
		"no device id": {noDevice, "deviceId: is missing"},
	} {
		if _, err := DecodeEvent(tc.value); err == nil || !strings.Contains(err.Error(), tc.reason) {
			t.Errorf("%s: got error %v, want one with %q", name, err, tc.reason)
		}
	}
}

// Proves that an event of a newer schema, with a kind not known here, is no
// error (an old consumer must not fill the dead letters on an upgrade).
func TestDecodeEventOfNewerSchema(t *testing.T) {
	value, err := EncodeEvent(&eventv1.DeviceEvent{AccountId: "a", DeviceId: "d"})
	if err != nil {
		t.Fatal(err)
	}
	value = append(value, 0xfa, 0x01, 0x00) // field 31, an empty message
	ev, err := DecodeEvent(value)
	if err != nil || ev.Kind != nil {
		t.Errorf("got kind %v, error %v; want an event without a kind", ev.GetKind(), err)
	}
}

// Proves that keys split back into what they were made of, and that nothing
// else passes for a device's key.
func TestSplitKey(t *testing.T) {
	if account, device, ok := SplitKey(DeviceKey("00011557", "cam:1")); !ok || account != "00011557" || device != "cam:1" {
		t.Errorf("got %q %q %v", account, device, ok)
	}
	for _, key := range []string{"", "/", "a/", "/d", "a", "a/b/c", "@position", "a/" + strings.Repeat("x", 65)} {
		if _, _, ok := SplitKey(key); ok {
			t.Errorf("SplitKey(%q) is a device", key)
		}
	}
}

// Proves that only RFC 3339 is a time and that every time is cut, not rounded,
// to milliseconds, before 1970 too.
func TestTimes(t *testing.T) {
	for text, want := range map[string]string{
		"2026-03-01T12:00:00Z":                "2026-03-01T12:00:00.000Z",
		"2026-03-01T12:00:00.2509999Z":        "2026-03-01T12:00:00.250Z",
		"2026-03-01T14:00:00.250+02:00":       "2026-03-01T12:00:00.250Z",
		"1969-12-31T23:59:59.9999Z":           "1969-12-31T23:59:59.999Z",
		"0001-01-01T00:00:00Z":                "0001-01-01T00:00:00.000Z",
		"9999-12-31T23:59:59.999999999Z":      "9999-12-31T23:59:59.999Z",
		"":                                    "",
		"0":                                   "",
		"1772366400":                          "",
		"1772366400250":                       "",
		"20260301120000.250":                  "",
		"2026-03-01":                          "",
		"2026-03-01 12:00:00Z":                "",
		"2026-03-01T12:00:00":                 "",
		"2026-03-01T12:00:00,5Z":              "",
		"2026-03-01T1:00:00Z":                 "",
		"2026-03-01T12:00:00+23:59":           "2026-02-28T12:01:00.000Z",
		"2026-02-30T12:00:00Z":                "",
		"0000-01-01T00:00:00Z":                "",
		"0001-01-01T00:00:00+01:00":           "",
		"9999-12-31T23:59:59-01:00":           "",
		"Sun, 01 Mar 2026 12:00:00 GMT":       "",
		"2026-03-01T12:00:00.250Z and a tail": "",
	} {
		ms, err := ParseTime(text)
		switch {
		case want == "" && err == nil:
			t.Errorf("ParseTime(%q) = %s, want an error", text, FormatTime(ms))
		case want != "" && err != nil:
			t.Errorf("ParseTime(%q): %v", text, err)
		case want != "" && FormatTime(ms) != want:
			t.Errorf("ParseTime(%q) = %s, want %s", text, FormatTime(ms), want)
		}
		if back, ok := UnixMilli(Timestamp(ms)); !ok || back != ms {
			t.Errorf("Timestamp(%d) is %d", ms, back)
		}
	}
	for _, ts := range []*timestamppb.Timestamp{nil, {Seconds: minSeconds - 1}, {Seconds: endSeconds}, {Nanos: -1}, {Nanos: 1e9}} {
		if _, ok := UnixMilli(ts); ok {
			t.Errorf("%v passes for a time", ts)
		}
	}
	if got := Timestamp(-1).AsTime(); !got.Equal(time.UnixMilli(-1)) {
		t.Errorf("Timestamp(-1) is %v", got)
	}
}

// Proves that a trace survives the record headers and that a broken one is no
// trace instead of an error.
func TestTrace(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	sc := ParseTrace(parent, "vendor=1")
	if gotParent, gotState := FormatTrace(sc); gotParent != parent || gotState != "vendor=1" {
		t.Errorf("got %q %q", gotParent, gotState)
	}
	for _, broken := range []string{"", "00", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"} {
		if sc := ParseTrace(broken, ""); sc.IsValid() {
			t.Errorf("%q passes for a trace", broken)
		}
	}
	if parent, state := FormatTrace(ParseTrace("", "")); parent != "" || state != "" {
		t.Errorf("no trace is written as %q %q", parent, state)
	}
}
