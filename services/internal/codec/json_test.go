package codec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
)

// contractEvents are the events of the contract, and each field once.
const contractEvents = `{"eventId":"e1","accountId":"00011557","deviceId":"100a9af6","sourceId":"a1","sourceEpoch":"1","sequence":"7","occurTime":"2026-03-01T12:00:00.250Z","status":{"bits":1441847,"kind":"CAMERA"}}
{"eventId":"e2","accountId":"00011557","deviceId":"100a9af6","occurTime":"2026-03-01T12:00:00.250Z","status":{"state":"OFFLINE"}}
{"eventId":"e3","accountId":"00011557","deviceId":"100a9af6","occurTime":"2026-03-01T12:00:00.250Z","motion":{"phase":"START","spanId":"m1","regionId":"door","score":0.8}}
{"eventId":"e4","accountId":"00011557","deviceId":"100a9af6","occurTime":"2026-03-01T12:00:00.250Z","heartbeat":{}}
{"eventId":"e5","accountId":"operator","deviceId":"archiver-3","occurTime":"2026-03-01T12:00:00.250Z","heartbeat":{"backBy":"2026-03-01T12:05:00Z"}}
{"eventId":"e6","accountId":"a","deviceId":"d","sequence":18446744073709551615,"status":{"bits":"1179649","kind":"BRIDGE"}}
{"eventId":"e7","accountId":"a","deviceId":"d","occurTime":"2026-03-01T12:00:00Z","receiveTime":"2026-03-01T12:00:01Z","spooled":true,"restated":true,"timeCorrected":true,"status":{"state":"UNKNOWN"}}
{"accountId":"a","deviceId":"d","code":"CZTC"}
{"accountId":"a","deviceId":"d","occurTime":null,"sequence":null,"motion":null,"status":{"bits":null,"state":null}}`

// Proves that the events of the contract are read as proto3 JSON has them, by
// comparing with protojson, and that they come back from both of their forms.
func TestParseEventIsProtoJSON(t *testing.T) {
	for _, line := range strings.Split(contractEvents, "\n") {
		got, err := ParseEvent([]byte(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		want := new(eventv1.DeviceEvent)
		if err := protojson.Unmarshal([]byte(line), want); err != nil {
			t.Fatalf("the test's own line is wrong: %v", err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s: -protojson +codec\n%s", line, diff)
		}
		checkRoundTrips(t, got)
	}
}

func checkRoundTrips(t *testing.T, ev *eventv1.DeviceEvent) {
	t.Helper()
	text := MarshalEventJSON(ev)
	again, err := ParseEvent(text)
	if err != nil {
		t.Fatalf("own JSON %s: %v", text, err)
	}
	if diff := cmp.Diff(ev, again, protocmp.Transform()); diff != "" {
		t.Errorf("JSON changed the event:\n%s", diff)
	}
	value, err := EncodeEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	again, err = DecodeEvent(value)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ev, again, protocmp.Transform()); diff != "" {
		t.Errorf("protobuf changed the event:\n%s", diff)
	}
}

// Proves that a state which this version does not know is kept by name (rule
// S1), and stays when the event is written again.
func TestUnknownStateIsKept(t *testing.T) {
	ev, err := ParseEvent([]byte(`{"accountId":"a","deviceId":"d","status":{"state":"REBOOTING"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if s := ev.GetStatus(); s.State != eventv1.Status_UNKNOWN || s.UnknownState != "REBOOTING" {
		t.Errorf("got %v", s)
	}
	checkRoundTrips(t, ev)
}

// Proves that each kind of bad event is refused, naming its field.
func TestParseEventNamesTheField(t *testing.T) {
	for _, tc := range []struct{ text, field, reason string }{
		{``, "", "too early"},
		{`{`, "", "too early"},
		{`{"accountId":"a"`, "", "too early"},
		{`{"accountId":"a","deviceId":"d","status":`, "", "too early"},
		{`{"accountId":}`, "", "not readable"},
		{"{\"accountId\":\"\xff\"}", "", "not readable"},
		{`[]`, "", "this is an array"},
		{`7`, "", "this is a number"},
		{`null`, "", "this is null"},
		{`{"accountId":"a","deviceId":"d","heartbeat":{}}{}`, "", "more after the event"},
		{`{"accountId":"a","deviceId":"d","heartbeat":{}} x`, "", "more after the event"},
		{`{"accountId":"a","accountId":"b"}`, "accountId", "twice"},
		{`{"deviceId":"d","heartbeat":{}}`, "accountId", "missing"},
		{`{"accountId":"a","heartbeat":{}}`, "deviceId", "missing"},
		{`{"accountId":"a","deviceId":"","heartbeat":{}}`, "deviceId", "missing"},
		{`{"accountId":"a b","deviceId":"d","heartbeat":{}}`, "accountId", "is no id"},
		{`{"accountId":"a","deviceId":"a/b","heartbeat":{}}`, "deviceId", "is no id"},
		{`{"accountId":"a","deviceId":"é","heartbeat":{}}`, "deviceId", "is no id"},
		{`{"accountId":"a","deviceId":"` + strings.Repeat("x", 65) + `","heartbeat":{}}`, "deviceId", "is no id"},
		{`{"accountId":17,"deviceId":"d","heartbeat":{}}`, "accountId", "must be a string, not a number"},
		{`{"accountId":"a","deviceId":"d","eventId":"a b","heartbeat":{}}`, "eventId", "is no id"},
		{`{"accountId":"a","deviceId":"d","sourceId":"a b","heartbeat":{}}`, "sourceId", "is no id"},
		{`{"accountId":"a","deviceId":"d","sourceEpoch":"\n","heartbeat":{}}`, "sourceEpoch", "is no id"},
		{`{"accountId":"a","deviceId":"d","sequence":-1,"heartbeat":{}}`, "sequence", "whole number"},
		{`{"accountId":"a","deviceId":"d","sequence":"x","heartbeat":{}}`, "sequence", "whole number"},
		{`{"accountId":"a","deviceId":"d","sequence":1.5,"heartbeat":{}}`, "sequence", "whole number"},
		{`{"accountId":"a","deviceId":"d","sequence":18446744073709551616,"heartbeat":{}}`, "sequence", "whole number"},
		{`{"accountId":"a","deviceId":"d","occurTime":1772366400,"heartbeat":{}}`, "occurTime", "RFC 3339"},
		{`{"accountId":"a","deviceId":"d","occurTime":"1772366400","heartbeat":{}}`, "occurTime", "RFC 3339"},
		{`{"accountId":"a","deviceId":"d","occurTime":"20260301120000.250","heartbeat":{}}`, "occurTime", "RFC 3339"},
		{`{"accountId":"a","deviceId":"d","receiveTime":"2026-03-01T12:00:00Z","heartbeat":{}}`, "receiveTime", "spooled or restated"},
		{`{"accountId":"a","deviceId":"d","spooled":"true","heartbeat":{}}`, "spooled", "true or false"},
		{`{"accountId":"a","deviceId":"d","appendTime":"2026-03-01T12:00:00Z","heartbeat":{}}`, "appendTime", "no field"},
		{`{"accountId":"a","deviceId":"d","\u0061ppendTime":null,"heartbeat":{}}`, "appendTime", "no field"},
		{`{"accountId":"a","deviceId":"d","device_id":"d","heartbeat":{}}`, "device_id", "no field"},
		{`{"accountId":"a","deviceId":"d"}`, "status", "missing"},
		{`{"accountId":"a","deviceId":"d","heartbeat":{},"status":{}}`, "status", "second kind"},
		{`{"accountId":"a","deviceId":"d","status":"OFFLINE"}`, "status", "must be an object"},
		{`{"accountId":"a","deviceId":"d","status":{"bits":-5}}`, "status.bits", "whole number"},
		{`{"accountId":"a","deviceId":"d","status":{"bits":4294967296}}`, "status.bits", "whole number"},
		{`{"accountId":"a","deviceId":"d","status":{"kind":"NVR"}}`, "status.kind", "not known"},
		{`{"accountId":"a","deviceId":"d","status":{"kind":1}}`, "status.kind", "must be a string"},
		{`{"accountId":"a","deviceId":"d","status":{"state":2}}`, "status.state", "must be a string"},
		{`{"accountId":"a","deviceId":"d","status":{"state":"RE BOOT"}}`, "status.state", "is no id"},
		{`{"accountId":"a","deviceId":"d","status":{"unknownState":"X"}}`, "status.unknownState", "no field"},
		{`{"accountId":"a","deviceId":"d","motion":{}}`, "motion.phase", "missing"},
		{`{"accountId":"a","deviceId":"d","motion":{"phase":"BEGIN"}}`, "motion.phase", "not known"},
		{`{"accountId":"a","deviceId":"d","motion":{"phase":"START","score":1.01}}`, "motion.score", "0 to 1"},
		{`{"accountId":"a","deviceId":"d","motion":{"phase":"START","score":1e999}}`, "motion.score", "out of range"},
		{`{"accountId":"a","deviceId":"d","motion":{"phase":"START","score":"NaN"}}`, "motion.score", "must be a number"},
		{`{"accountId":"a","deviceId":"d","motion":{"phase":"START","spanId":"a b"}}`, "motion.spanId", "is no id"},
		{`{"accountId":"a","deviceId":"d","motion":{"phase":"START","regionId":"a b"}}`, "motion.regionId", "is no id"},
		{`{"accountId":"a","deviceId":"d","heartbeat":{"backBy":300}}`, "heartbeat.backBy", "RFC 3339"},
		{`{"accountId":"a","deviceId":"d","heartbeat":{"until":300}}`, "heartbeat.until", "no field"},
	} {
		ev, err := ParseEvent([]byte(tc.text))
		var field *FieldError
		if !errors.As(err, &field) {
			t.Errorf("%s: got event %v, error %v", tc.text, ev, err)
			continue
		}
		if field.Field != tc.field || !strings.Contains(field.Reason, tc.reason) {
			t.Errorf("%s: got field %q reason %q, want %q and %q", tc.text, field.Field, field.Reason, tc.field, tc.reason)
		}
	}
}

// Proves that a replay line's append time is read, and may be absent.
func TestParseRecorded(t *testing.T) {
	ev, at, err := ParseRecorded([]byte(`{"accountId":"a","appendTime":"2026-03-01T12:00:00.552Z","deviceId":"d","heartbeat":{}}`))
	if err != nil || ev.DeviceId != "d" || !at.Equal(time.Date(2026, 3, 1, 12, 0, 0, 552e6, time.UTC)) {
		t.Errorf("got %v %v %v", ev, at, err)
	}
	if _, at, err = ParseRecorded([]byte(`{"accountId":"a","deviceId":"d","heartbeat":{}}`)); err != nil || !at.IsZero() {
		t.Errorf("got %v %v, want no append time", at, err)
	}
}

// Proves on any bytes that reading never panics, and that what it accepts is
// valid and survives both forms.
func FuzzParseEvent(f *testing.F) {
	for _, line := range strings.Split(contractEvents, "\n") {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"accountId":"a","deviceId":"d","status":{"state":"REBOOTING"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		ev, err := ParseEvent(text)
		if err != nil {
			var field *FieldError
			if !errors.As(err, &field) {
				t.Fatalf("error of type %T: %v", err, err)
			}
			return
		}
		if err := ValidateEvent(ev); err != nil {
			t.Fatal(err)
		}
		checkRoundTrips(t, ev)
	})
}

// Proves on any bytes that decoding a record's value never panics and gives
// only valid events.
func FuzzDecodeEvent(f *testing.F) {
	for _, line := range strings.Split(contractEvents, "\n") {
		ev, err := ParseEvent([]byte(line))
		if err != nil {
			f.Fatal(err)
		}
		value, err := EncodeEvent(ev)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		ev, err := DecodeEvent(value)
		if err != nil {
			return
		}
		if err := ValidateEvent(ev); err != nil {
			t.Fatal(err)
		}
		MarshalEventJSON(ev)
	})
}

func BenchmarkParseEvent(b *testing.B) {
	line := []byte(strings.Split(contractEvents, "\n")[0])
	b.Run("codec", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			if _, err := ParseEvent(line); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("protojson", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			if err := protojson.Unmarshal(line, new(eventv1.DeviceEvent)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMarshalEventJSON(b *testing.B) {
	ev, err := ParseEvent([]byte(strings.Split(contractEvents, "\n")[0]))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	var buf []byte
	for b.Loop() {
		buf = AppendEventJSON(buf[:0], ev)
	}
}

func BenchmarkDecodeEvent(b *testing.B) {
	ev, err := ParseEvent([]byte(strings.Split(contractEvents, "\n")[0]))
	if err != nil {
		b.Fatal(err)
	}
	value, err := EncodeEvent(ev)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeEvent(value); err != nil {
			b.Fatal(err)
		}
	}
}
