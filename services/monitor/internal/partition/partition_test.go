package partition_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/consume"
	"github.com/tocsin/tocsin/services/internal/kafka"
	"github.com/tocsin/tocsin/services/internal/topic"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

var _ consume.Partition = (*partition.Partition)(nil)

var topics = topic.New("tocsin.")

const partitions = 8

func open(key string, tracer trace.TracerProvider, observe partition.Observer) *partition.Partition {
	return partition.Open(partition.Options{
		Topics: topics, Defaults: device.DefaultRules, Tracer: tracer.Tracer("test"), Observe: observe,
	}, kafka.PartitionFor(key, partitions), partitions)
}

// record is an event as an archiver writes it.
func record(t testing.TB, ev *eventv1.DeviceEvent, headers ...kgo.RecordHeader) *kgo.Record {
	t.Helper()
	value, err := codec.EncodeEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	key := codec.DeviceKey(ev.AccountId, ev.DeviceId)
	return &kgo.Record{
		Topic: topics.ETags.Name, Partition: kafka.PartitionFor(key, partitions), Key: []byte(key), Value: value,
		Headers: append([]kgo.RecordHeader{{Key: kafka.HeaderType, Value: []byte(codec.TypeEvent)}}, headers...),
	}
}

func at(sec int64) time.Time { return time.UnixMilli(start + 1000*sec) }

// run hands records to p as the runtime does, and returns the effects.
func run(t testing.TB, p *partition.Partition, clock time.Time, recs ...*kgo.Record) []*kgo.Record {
	t.Helper()
	p.Advance(clock)
	for _, rec := range recs {
		if err := p.Handle(rec, clock); err != nil {
			t.Fatal(err)
		}
	}
	p.Advance(clock)
	out := p.Effects(nil)
	p.Commit()
	return out
}

func notification(t *testing.T, rec *kgo.Record) *notificationv1.Notification {
	t.Helper()
	n := new(notificationv1.Notification)
	if rec.Topic != topics.Notifications.Name {
		t.Fatalf("a record of %s, not a notification", rec.Topic)
	}
	if err := n.UnmarshalVT(rec.Value); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRecords proves what the records of a hold look like, field by field, and
// that the state's record brings the hold to the next owner.
func TestRecords(t *testing.T) {
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	ev := status("acme", "cam-1", start-250, eventv1.Status_UNKNOWN)
	ev.GetStatus().Bits = 1179937 // offline, password needed
	ev.EventId = "e1"
	out := run(t, p, at(0), record(t, ev))
	if len(out) != 2 {
		t.Fatalf("%d records, want a notification and a state", len(out))
	}
	id := device.NotificationID("acme", "cam-1", device.OfflineType, start-250, "", "")
	want := &notificationv1.Notification{
		NotificationId: id, AccountId: "acme", DeviceId: "cam-1",
		Type: notificationv1.Notification_OFFLINE, Stage: notificationv1.Notification_PENDING,
		SinceTime: codec.Timestamp(start - 250), DecideTime: codec.Timestamp(start), DeadlineTime: codec.Timestamp(start - 250 + 300_000),
		PasswordNeeded: true, EventId: "e1",
	}
	if diff := cmp.Diff(want, notification(t, out[0]), protocmp.Transform()); diff != "" {
		t.Errorf("pending (-want +got):\n%s", diff)
	}
	if string(out[0].Key) != "acme/cam-1" || out[0].Partition != kafka.PartitionFor("acme", partitions) {
		t.Errorf("notification in partition %d with key %q", out[0].Partition, out[0].Key)
	}
	headers := map[string]string{}
	for _, h := range out[0].Headers {
		headers[h.Key] = string(h.Value)
	}
	if diff := cmp.Diff(map[string]string{
		kafka.HeaderType: "tocsin.notification.v1.Notification", kafka.HeaderOccurTime: "2026-03-01T11:59:59.750Z",
	}, headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	state := out[1]
	if state.Topic != topics.DeviceState.Name || string(state.Key) != "acme/cam-1" || state.Partition != kafka.PartitionFor("acme/cam-1", partitions) {
		t.Errorf("state in %s partition %d with key %q", state.Topic, state.Partition, state.Key)
	}

	next := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	if err := next.Restore(state); err != nil {
		t.Fatal(err)
	}
	if due, ok := next.Due(); !ok || due.UnixMilli() != start-250+300_000 {
		t.Errorf("the next owner is due at %v (%t)", due, ok)
	}
	out = run(t, next, at(500))
	want = &notificationv1.Notification{
		NotificationId: id, AccountId: "acme", DeviceId: "cam-1",
		Type: notificationv1.Notification_OFFLINE, Stage: notificationv1.Notification_DUE,
		SinceTime: codec.Timestamp(start - 250), DecideTime: codec.Timestamp(start - 250 + 300_000),
		Hold: durationpb.New(299_750 * time.Millisecond), OutageId: device.OutageID("acme", "cam-1", start-250), PasswordNeeded: true,
	}
	if diff := cmp.Diff(want, notification(t, out[0]), protocmp.Transform()); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
	out = run(t, next, at(600), record(t, status("acme", "cam-1", start+600_000, eventv1.Status_ONLINE)))
	n := notification(t, out[0])
	if n.OutageId != want.OutageId || n.OutageSinceTime.AsTime().UnixMilli() != start-250 || n.Type != notificationv1.Notification_ONLINE {
		t.Errorf("the recovery does not name its outage: %v", n)
	}

	ev = motion("door", "m1", start+700_000)
	ev.GetMotion().Score, ev.EventId = 0.5, "e9"
	out = run(t, next, at(701), record(t, ev))
	want = &notificationv1.Notification{
		NotificationId: device.NotificationID("acme", "cam-1", device.Alert, start+700_000, "door", "m1"),
		AccountId:      "acme", DeviceId: "cam-1",
		Type: notificationv1.Notification_ALERT, Stage: notificationv1.Notification_DUE,
		SinceTime: codec.Timestamp(start + 700_000), DecideTime: codec.Timestamp(start + 701_000),
		Hold: durationpb.New(0), RegionId: "door", SpanId: "m1", Score: 0.5, EventId: "e9",
	}
	if diff := cmp.Diff(want, notification(t, out[1]), protocmp.Transform()); diff != "" {
		t.Errorf("alert (-want +got):\n%s", diff)
	}
}

// TestRepeatWritesNothing proves that an ETag which changes nothing makes no
// record at all.
func TestRepeatWritesNothing(t *testing.T) {
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	ev := func(sec int64) *eventv1.DeviceEvent {
		ev := status("acme", "cam-1", start+sec*1000, eventv1.Status_ONLINE)
		ev.SourceId, ev.SourceEpoch, ev.Sequence = "a", "1", uint64(sec)+1
		return ev
	}
	run(t, p, at(0), record(t, ev(0)))
	if out := run(t, p, at(30), record(t, ev(30)), record(t, ev(29))); len(out) != 0 {
		t.Errorf("a repeat and a stale one made %d records", len(out))
	}
	if out := run(t, p, at(91), record(t, motionPhase(eventv1.Motion_UPDATE)), record(t, ev(30))); len(out) != 1 || out[0].Topic != topics.DeviceState.Name {
		t.Errorf("after a minute %d records, want the state that lagged", len(out))
	}
}

func motionPhase(phase eventv1.Motion_Phase) *eventv1.DeviceEvent {
	ev := motion("door", "m1", start)
	ev.GetMotion().Phase = phase
	return ev
}

// TestReject proves that each bad record is refused with a reason that names
// what is wrong, and leaves the partition as it was (B57).
func TestReject(t *testing.T) {
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	for want, spoil := range map[string]func(*kgo.Record){
		"no key":     func(r *kgo.Record) { r.Key = nil },
		"no header":  func(r *kgo.Record) { r.Headers = nil },
		"is empty":   func(r *kgo.Record) { r.Value = []byte{} },
		"value is e": func(r *kgo.Record) { r.Value = nil },
		"decode":     func(r *kgo.Record) { r.Value = []byte{0xff, 0xff} },
		"deviceId":   func(r *kgo.Record) { r.Value = []byte{0x12, 1, 'a'} },
		`is a "other.Type", not a tocsin.event.v1.DeviceEvent`: func(r *kgo.Record) { r.Headers[0].Value = []byte("other.Type") },
		`"acme/cam-2" is not that of the event's device`:       func(r *kgo.Record) { r.Key = []byte("acme/cam-2") },
	} {
		rec := record(t, status("acme", "cam-1", start, eventv1.Status_OFFLINE))
		spoil(rec)
		p.Advance(at(0))
		if err := p.Handle(rec, at(0)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got the reason %v", want, err)
		}
	}
	stray := partition.Open(partition.Options{Topics: topics, Tracer: tracenoop.NewTracerProvider().Tracer("")},
		(kafka.PartitionFor("acme/cam-1", partitions)+1)%partitions, partitions)
	if err := stray.Handle(record(t, status("acme", "cam-1", start, eventv1.Status_OFFLINE)), at(0)); err == nil || !strings.Contains(err.Error(), "belongs to") {
		t.Errorf("a record in a stray partition: %v", err)
	}
	if out := p.Effects(nil); len(out) != 0 {
		t.Errorf("refused records had %d effects", len(out))
	}
	p.Commit()
	if out := run(t, p, at(1), record(t, status("acme", "cam-1", start, eventv1.Status_OFFLINE))); len(out) != 2 {
		t.Errorf("the good record behind them made %d records", len(out))
	}
}

// TestUnknownIsNoDeadLetter proves that an unknown state, and a kind of a newer
// schema, are rule S1's business and not the dead letters'.
func TestUnknownIsNoDeadLetter(t *testing.T) {
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	ev := status("acme", "cam-1", start, eventv1.Status_UNKNOWN)
	ev.GetStatus().UnknownState = "REBOOTING"
	newer := status("acme", "cam-1", start, 77)
	none := &eventv1.DeviceEvent{AccountId: "acme", DeviceId: "cam-1"}
	if out := run(t, p, at(0), record(t, ev), record(t, newer), record(t, none)); len(out) != 0 {
		t.Errorf("%d records", len(out))
	}
}

// TestSettingRecords proves that settings are read from their records, and that
// bytes which are none are refused.
func TestSettingRecords(t *testing.T) {
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	s := &settingsv1.DeviceSettings{AccountId: "acme", DeviceId: "cam-1", Holds: &settingsv1.Holds{Offline: durationpb.New(20 * time.Second)}}
	value, err := s.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Setting(&kgo.Record{Key: []byte("acme/cam-1"), Value: value}); err != nil {
		t.Fatal(err)
	}
	if err := p.Setting(&kgo.Record{Key: []byte("acme/cam-1"), Value: []byte{0xff}}); err == nil {
		t.Error("unreadable settings were taken")
	}
	run(t, p, at(0), record(t, status("acme", "cam-1", start, eventv1.Status_OFFLINE)))
	if due, ok := p.Due(); !ok || !due.Equal(at(20)) {
		t.Errorf("due at %v (%t)", due, ok)
	}
}

// TestTraces proves the traces of what is told: an alert goes on with its
// ETag's trace; a hold has one of its own from its true start to its true end,
// linked to the ETag's; what an aborted transaction told has none.
func TestTraces(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	defer provider.Shutdown(context.Background())
	p := open("acme/cam-1", provider, nil)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	header := kgo.RecordHeader{Key: kafka.HeaderTraceParent, Value: []byte(parent)}

	rec := record(t, motion("door", "m1", start), header)
	p.Advance(at(0))
	if err := p.Handle(rec, at(0)); err != nil {
		t.Fatal(err)
	}
	p.Effects(nil)
	p.Abort()
	if n := len(recorder.Ended()); n != 0 {
		t.Fatalf("%d spans of an aborted transaction", n)
	}
	out := run(t, p, at(0), rec, record(t, status("acme", "cam-1", start, eventv1.Status_OFFLINE), header))
	due := run(t, p, at(400))
	ended := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range recorder.Ended() {
		ended[s.Name()] = s
	}
	alert, pending, hold := ended["decide due"], ended["decide pending"], ended["hold"]
	if len(recorder.Ended()) != 3 || alert == nil || pending == nil || hold == nil {
		t.Fatalf("spans %v", ended)
	}
	for _, s := range []sdktrace.ReadOnlySpan{alert, pending} {
		if s.Parent().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || s.Parent().SpanID().String() != "b7ad6b7169203331" {
			t.Errorf("%s: its parent is %v", s.Name(), s.Parent())
		}
	}
	if !hold.StartTime().Equal(at(0)) || !hold.EndTime().Equal(at(300)) {
		t.Errorf("the hold is from %v to %v", hold.StartTime(), hold.EndTime())
	}
	if hold.Parent().IsValid() || len(hold.Links()) != 1 || hold.Links()[0].SpanContext.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("the hold has parent %v and links %v", hold.Parent(), hold.Links())
	}
	for i, s := range []sdktrace.ReadOnlySpan{alert, pending} {
		if got := kafka.Header(out[i], kafka.HeaderTraceParent); !strings.Contains(got, s.SpanContext().SpanID().String()) {
			t.Errorf("record %d has traceparent %q", i, got)
		}
	}
	if got := kafka.Header(due[0], kafka.HeaderTraceParent); !strings.Contains(got, hold.SpanContext().TraceID().String()) {
		t.Errorf("what is due has traceparent %q", got)
	}
}

// TestTraceSurvivesRestore proves that the next owner still knows the ETag's
// trace, and that a service which records nothing hands it on as it came.
func TestTraceSurvivesRestore(t *testing.T) {
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	out := run(t, p, at(0), record(t, status("acme", "cam-1", start, eventv1.Status_OFFLINE), kgo.RecordHeader{Key: kafka.HeaderTraceParent, Value: []byte(parent)}))
	next := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	if err := next.Restore(out[1]); err != nil {
		t.Fatal(err)
	}
	if got := kafka.Header(run(t, next, at(400))[0], kafka.HeaderTraceParent); got != parent {
		t.Errorf("traceparent %q, want %q", got, parent)
	}
}

// observed keeps what a partition says of its commits.
type observed struct {
	counts         partition.Counts
	told, devices  int
	holds          int
	closed, begun0 bool
}

func (o *observed) Committed(_ int32, begun time.Time, c *partition.Counts, told []partition.Notification, devices, holds int) {
	o.counts, o.told, o.devices, o.holds, o.begun0 = *c, len(told), devices, holds, begun.IsZero()
}

func (o *observed) Closed(int32) { o.closed = true }

// TestObserved proves that a commit tells what it saw and what there is.
func TestObserved(t *testing.T) {
	var o observed
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), &o)
	zero := status("acme", "cam-1", start+11_000, eventv1.Status_UNKNOWN)
	zero.TimeCorrected = true // and counted by the archiver, but ahead of the clock still
	run(t, p, at(0), record(t, status("acme", "cam-1", start, eventv1.Status_OFFLINE)), record(t, zero), record(t, motionPhase(eventv1.Motion_END)),
		record(t, &eventv1.DeviceEvent{AccountId: "acme", DeviceId: "cam-1", Kind: &eventv1.DeviceEvent_Heartbeat{Heartbeat: &eventv1.Heartbeat{}}}))
	want := observed{told: 1, devices: 1, holds: 1, counts: partition.Counts{Statuses: 2, MotionSteps: 1, Heartbeats: 1}}
	want.counts.Reasons[device.StatusZero] = 1
	want.counts.Reasons[device.TimeCorrected] = 1
	if o != want {
		t.Errorf("observed %+v, want %+v", o, want)
	}
	if p.Close(); !o.closed {
		t.Error("not told that it is closed")
	}
}

// TestNumbersAgree proves that the machine's numbers are those of the records.
func TestNumbersAgree(t *testing.T) {
	for c, want := range map[device.Condition]statev1.DeviceState_State{
		device.Unknown: statev1.DeviceState_UNKNOWN, device.Online: statev1.DeviceState_ONLINE, device.Offline: statev1.DeviceState_OFFLINE,
		device.InternetOffline: statev1.DeviceState_INTERNET_OFFLINE, device.Off: statev1.DeviceState_OFF,
	} {
		if int32(c) != int32(want) {
			t.Errorf("%v is %d, in the record %d", c, c, want)
		}
	}
	for c, want := range map[device.Condition]eventv1.Status_State{
		device.Online: eventv1.Status_ONLINE, device.Offline: eventv1.Status_OFFLINE,
		device.InternetOffline: eventv1.Status_INTERNET_OFFLINE, device.Off: eventv1.Status_OFF,
	} {
		if int32(c) != int32(want) {
			t.Errorf("%v is %d, in the event %d", c, c, want)
		}
	}
	for n := device.NoType; n <= device.InternetOfflineType; n++ {
		if got := notificationv1.Notification_Type(n).String(); got != n.String() {
			t.Errorf("type %v is %s in the record", n, got)
		}
	}
	for n := device.Pending; n <= device.Resumed; n++ {
		if got := notificationv1.Notification_Stage(n).String(); got != strings.ToUpper(n.String()) {
			t.Errorf("stage %v is %s in the record", n, got)
		}
	}
}

// TestRestoreRefuses proves that a damaged state is refused by the device's
// name, and that nothing of it is taken.
func TestRestoreRefuses(t *testing.T) {
	table := partition.NewTable(device.DefaultRules)
	before := table.Inside()
	value := func(s *statev1.DeviceState) []byte {
		b, err := s.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		key   string
		value []byte
	}{
		"key":             {"acme", value(&statev1.DeviceState{Confirmed: statev1.DeviceState_ONLINE})},
		"empty":           {"acme/cam-1", []byte{}},
		"bytes":           {"acme/cam-1", []byte{0xff, 1}},
		"state":           {"acme/cam-1", value(&statev1.DeviceState{Confirmed: 9})},
		"negative":        {"acme/cam-1", value(&statev1.DeviceState{Confirmed: -1})},
		"confirmed off":   {"acme/cam-1", value(&statev1.DeviceState{Confirmed: statev1.DeviceState_OFF})},
		"wrapped":         {"acme/cam-1", value(&statev1.DeviceState{Confirmed: 257})},
		"trace":           {"acme/cam-1", value(&statev1.DeviceState{Candidate: &statev1.DeviceState_Candidate{State: statev1.DeviceState_OFFLINE, Trace: make([]byte, 23)}})},
		"long trace":      {"acme/cam-1", value(&statev1.DeviceState{Candidate: &statev1.DeviceState_Candidate{State: statev1.DeviceState_OFFLINE, Trace: make([]byte, 25)}})},
		"span times":      {"acme/cam-1", value(&statev1.DeviceState{SpanHashes: []uint64{1}})},
		"span hash":       {"acme/cam-1", value(&statev1.DeviceState{SpanHashes: []uint64{1 << 48}, SpanOccurUnixMs: []int64{1}})},
		"span time":       {"acme/cam-1", value(&statev1.DeviceState{SpanHashes: []uint64{1}, SpanOccurUnixMs: []int64{-1}})},
		"too many spans":  {"acme/cam-1", value(&statev1.DeviceState{SpanHashes: make([]uint64, 33), SpanOccurUnixMs: make([]int64, 33)})},
		"online to offer": {"acme/cam-1", value(&statev1.DeviceState{Candidate: &statev1.DeviceState_Candidate{State: statev1.DeviceState_ONLINE}})},
	} {
		if err := table.Restore([]byte(c.key), c.value); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if diff := cmp.Diff(before, table.Inside()); diff != "" {
		t.Errorf("refused states changed (-before +after):\n%s", diff)
	}
	if err := table.Restore([]byte("acme/cam-1"), nil); err != nil {
		t.Errorf("a tombstone of nobody: %v", err)
	}
}

// FuzzRestore proves that no bytes can make a state that the machine cannot go
// on with, and that what was taken is written as it was read.
func FuzzRestore(f *testing.F) {
	p := open("acme/cam-1", tracenoop.NewTracerProvider(), nil)
	for _, rec := range run(f, p, at(0), record(f, motion("door", "m1", start)), record(f, status("acme", "cam-1", start, eventv1.Status_OFFLINE))) {
		f.Add(rec.Value)
	}
	for _, rec := range run(f, p, at(400), record(f, status("acme", "cam-1", start+400_000, eventv1.Status_ONLINE))) {
		f.Add(rec.Value)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		table := partition.NewTable(device.DefaultRules)
		if table.Restore([]byte("acme/cam-1"), value) != nil {
			return
		}
		again := partition.NewTable(device.DefaultRules)
		for key, value := range table.Everything() {
			if err := again.Restore([]byte(key), value); err != nil {
				t.Fatalf("written and refused: %v", err)
			}
		}
		if diff := cmp.Diff(table.Inside(), again.Inside()); diff != "" {
			t.Fatalf("written and read (-was +is):\n%s", diff)
		}
		for i, state := range []eventv1.Status_State{eventv1.Status_OFF, eventv1.Status_OFFLINE, eventv1.Status_INTERNET_OFFLINE, eventv1.Status_ONLINE} {
			step(table, entry{status("acme", "cam-1", start+int64(i), state), start + int64(i)})
			step(table, entry{motion("door", "m2", start+int64(i)), start + int64(i)})
		}
		table.Advance(device.MaxTime)
	})
}
