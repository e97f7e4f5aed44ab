package readmodel

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
)

var zero = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func sec(s int) *timestamppb.Timestamp {
	return timestamppb.New(zero.Add(time.Duration(s) * time.Second))
}

type marshaler interface{ MarshalVT() ([]byte, error) }

func record(t testing.TB, key, kind string, m marshaler) *kgo.Record {
	t.Helper()
	rec := &kgo.Record{Key: []byte(key), Headers: []kgo.RecordHeader{{Key: "type", Value: []byte(kind)}}}
	if m != nil {
		var err error
		if rec.Value, err = m.MarshalVT(); err != nil {
			t.Fatal(err)
		}
	}
	return rec
}

func (m *Model) tell(t testing.TB, n *notificationv1.Notification) {
	t.Helper()
	m.Notification(record(t, n.GetAccountId()+"/"+n.GetDeviceId(), "tocsin.notification.v1.Notification", n))
}

func silent() *Model { return New(slog.New(slog.DiscardHandler)) }

func offline(id string, stage notificationv1.Notification_Stage, since, decided int) *notificationv1.Notification {
	return &notificationv1.Notification{NotificationId: id, AccountId: "a", DeviceId: "d", Type: notificationv1.Notification_OFFLINE, Stage: stage, SinceTime: sec(since), DecideTime: sec(decided)}
}

// A device is shown as its last record says, whatever key space a filtered
// monitor keeps it in; a tombstone takes it away, garbage changes nothing.
func TestDevices(t *testing.T) {
	m := silent()
	state := &statev1.DeviceState{
		Confirmed: statev1.DeviceState_ONLINE, ConfirmedSinceUnixMs: zero.UnixMilli(),
		Candidate: &statev1.DeviceState_Candidate{State: statev1.DeviceState_OFFLINE, SinceUnixMs: zero.UnixMilli(), StartedUnixMs: zero.UnixMilli(), DeadlineUnixMs: zero.Add(300 * time.Second).UnixMilli()},
		Last:      &statev1.DeviceState_Sample{State: statev1.DeviceState_OFFLINE, ReceiveUnixMs: zero.UnixMilli()},
	}
	m.DeviceState(record(t, "a/held", "", state))
	m.DeviceState(record(t, "c001!a/off", "", &statev1.DeviceState{Confirmed: statev1.DeviceState_OFFLINE, Last: &statev1.DeviceState_Sample{State: statev1.DeviceState_OFF}}))
	m.DeviceState(record(t, "a/out", "", &statev1.DeviceState{Confirmed: statev1.DeviceState_INTERNET_OFFLINE}))
	m.DeviceState(record(t, "a/fine", "", &statev1.DeviceState{Confirmed: statev1.DeviceState_ONLINE}))
	m.DeviceState(record(t, "a/gone", "", &statev1.DeviceState{Confirmed: statev1.DeviceState_ONLINE}))
	m.DeviceState(&kgo.Record{Key: []byte("a/gone")})
	m.DeviceState(&kgo.Record{Key: []byte("a/fine"), Value: []byte{0xff, 0xff}})
	m.DeviceState(record(t, "@position", "", &statev1.Position{NextOffset: 4}))

	o := m.Overview(10, 10)
	var got []string
	for _, d := range o.Devices {
		got = append(got, fmt.Sprint(d.ID, " ", d.State, " off=", d.Off, " held=", d.Hold != nil))
	}
	want := []string{"out INTERNET_OFFLINE off=false held=false", "held ONLINE off=false held=true", "fine ONLINE off=false held=false", "off OFFLINE off=true held=false"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error("(-want +got):\n" + d)
	}
	if d := cmp.Diff(Counts{Accounts: 1, Devices: 4, Online: 2, Out: 1, Held: 1, Off: 1}, o.Counts); d != "" {
		t.Error("(-want +got):\n" + d)
	}
	if h := o.Devices[1].Hold; !h.Deadline.Equal(zero.Add(300 * time.Second)) {
		t.Errorf("hold = %+v", h)
	}
	// However many there are, the few that are asked for are the first.
	for i := range 3000 {
		m.DeviceState(record(t, fmt.Sprintf("a/x%04d", (i*7919)%3000), "", &statev1.DeviceState{Confirmed: statev1.DeviceState_ONLINE}))
	}
	if o := m.Overview(4, 0); len(o.Devices) != 4 || o.Devices[0].ID != "out" || o.Devices[1].ID != "held" || o.Devices[2].ID != "fine" || o.Devices[3].ID != "x0000" || o.Counts.Devices != 3004 {
		t.Errorf("first four %v of %d", o.Devices, o.Counts.Devices)
	}
}

// The stages of one notification are one line: what was held and withdrawn
// keeps the hold's deadline, what is due gets its decision and mails, whichever
// topic is read first.
func TestStagesAndOutcomesAreJoined(t *testing.T) {
	pending := offline("n1", notificationv1.Notification_PENDING, 0, 0)
	pending.DeadlineTime = sec(300)
	m := silent()
	m.tell(t, pending)
	m.tell(t, offline("n1", notificationv1.Notification_WITHDRAWN, 0, 75))
	due := offline("n2", notificationv1.Notification_DUE, 100, 400)
	due.Hold = durationpb.New(300 * time.Second)
	decision := record(t, "a", "tocsin.delivery.v1.Decision", &deliveryv1.Decision{
		AccountId: "a", Notification: due, DecideTime: sec(400), AlertDelayWithoutHold: durationpb.New(7 * time.Millisecond),
		Outcomes: []*deliveryv1.Outcome{
			{Reason: deliveryv1.Outcome_MAILED, UserIds: []string{"ann", "bob"}, MailIds: []string{"m1", "m2"}},
			{Reason: deliveryv1.Outcome_OUTSIDE_USERS_SCHEDULE, UserIds: []string{"cy"}},
		},
	})
	m.Delivery(decision) // before the notification
	m.tell(t, due)
	outcome := func(mail string, reason deliveryv1.Outcome_Reason, attempt uint32) {
		m.Delivery(record(t, "a", "tocsin.delivery.v1.MailOutcome", &deliveryv1.MailOutcome{
			AccountId: "a", MailId: mail, NotificationIds: []string{"n2", "unknown"}, Reason: reason, Time: sec(401), MessageId: mail + "@x",
			Settled: reason == deliveryv1.Outcome_SENT, Result: &outboxv1.Result{Attempt: attempt, ReplyCode: 250},
		}))
	}
	outcome("m1", deliveryv1.Outcome_RETRYING, 1)
	outcome("m1", deliveryv1.Outcome_SENT, 2)

	n := m.Overview(0, 10).Notices
	if len(n) != 2 || n[0].ID != "n2" || n[1].ID != "n1" {
		t.Fatalf("notices %+v", n)
	}
	if w := n[1]; w.Stage != notificationv1.Notification_WITHDRAWN || !w.Deadline.Equal(zero.Add(300*time.Second)) || !w.Decided.Equal(zero.Add(75*time.Second)) || w.Decision != nil {
		t.Errorf("withdrawn %+v", w)
	}
	want := []Outcome{
		{User: "ann", Reason: deliveryv1.Outcome_MAILED, MailID: "m1", MessageID: "m1@x", Mail: deliveryv1.Outcome_SENT, MailAt: zero.Add(401 * time.Second), Attempt: 2, Code: 250, Settled: true},
		{User: "bob", Reason: deliveryv1.Outcome_MAILED, MailID: "m2"},
		{User: "cy", Reason: deliveryv1.Outcome_OUTSIDE_USERS_SCHEDULE},
	}
	if d := cmp.Diff(want, n[0].Decision.Outcomes); d != "" {
		t.Error("(-want +got):\n" + d)
	}
	// A further decision adds its recipients (rule G8).
	m.Delivery(record(t, "a", "tocsin.delivery.v1.Decision", &deliveryv1.Decision{AccountId: "a", Notification: due, Further: true, DecideTime: sec(410),
		Outcomes: []*deliveryv1.Outcome{{Reason: deliveryv1.Outcome_MAILED, UserIds: []string{"dan"}, MailIds: []string{"m4"}}}}))
	if o := m.Overview(0, 1).Notices[0].Decision.Outcomes; len(o) != 4 || o[3].User != "dan" {
		t.Errorf("outcomes %+v", o)
	}
	// Paused and resumed keep what was decided.
	m.tell(t, offline("n2", notificationv1.Notification_PAUSED, 100, 500))
	if x := m.Overview(0, 1).Notices[0]; x.Paused.IsZero() || x.Stage != notificationv1.Notification_DUE || x.Decision == nil {
		t.Errorf("paused %+v", x)
	}
	m.tell(t, offline("n2", notificationv1.Notification_RESUMED, 100, 600))
	if x := m.Overview(0, 1).Notices[0]; !x.Paused.IsZero() {
		t.Errorf("resumed %+v", x)
	}
}

// Ticks and mail results on the notifications topic, and records that cannot
// be read, change nothing.
func TestForeignRecords(t *testing.T) {
	m := silent()
	v := m.Version()
	m.Notification(&kgo.Record{Headers: []kgo.RecordHeader{{Key: "type", Value: []byte("tocsin.tick.v1.Tick")}}})
	m.Notification(&kgo.Record{Value: []byte{0xff}, Headers: []kgo.RecordHeader{{Key: "type", Value: []byte("tocsin.notification.v1.Notification")}}})
	m.Notification(&kgo.Record{Value: []byte("x")})
	m.Delivery(&kgo.Record{Value: []byte{0xff}, Headers: []kgo.RecordHeader{{Key: "type", Value: []byte("tocsin.delivery.v1.Decision")}}})
	m.Delivery(record(t, "a", "tocsin.delivery.v1.Decision", &deliveryv1.Decision{AccountId: "a"}))
	m.Delivery(record(t, "a", "tocsin.delivery.v1.MailOutcome", &deliveryv1.MailOutcome{AccountId: "a", MailId: "m", NotificationIds: []string{"n"}}))
	if n := m.Overview(10, 10); len(n.Notices) != 0 || len(n.Devices) != 0 {
		t.Errorf("%+v", n)
	}
	if m.Version() > v+1 {
		t.Errorf("version went from %d to %d", v, m.Version())
	}
}

// What is kept is bounded: the notifications longest untouched go first, and
// of one notification only so many recipients are kept, the rest counted.
func TestBounds(t *testing.T) {
	m := silent()
	for i := range 3 * maxNotices {
		m.tell(t, offline(fmt.Sprint("n", i), notificationv1.Notification_PENDING, i, i))
		m.tell(t, offline("first", notificationv1.Notification_PENDING, 0, i))
	}
	n := m.Overview(0, 10*maxNotices).Notices
	if most := maxNotices + maxNotices/10; len(n) < maxNotices || len(n) > most || len(m.notices) > most || n[0].ID != "first" || n[1].ID != fmt.Sprint("n", 3*maxNotices-1) || n[len(n)-1].ID != fmt.Sprint("n", 3*maxNotices+1-len(n)) {
		t.Errorf("%d notices, first %s, then %s", len(n), n[0].ID, n[1].ID)
	}
	var users []string
	for i := range maxOutcomes + 7 {
		users = append(users, fmt.Sprint("u", i))
	}
	m.Delivery(record(t, "a", "tocsin.delivery.v1.Decision", &deliveryv1.Decision{AccountId: "a", Notification: offline("big", notificationv1.Notification_DUE, 0, 0), Outcomes: []*deliveryv1.Outcome{{Reason: deliveryv1.Outcome_SILENCED, UserIds: users}}}))
	if d := m.Overview(0, 1).Notices[0].Decision; len(d.Outcomes) != maxOutcomes || d.More != 7 {
		t.Errorf("%d outcomes and %d more", len(d.Outcomes), d.More)
	}
}

// A watcher is told of a change once it looks, however many there were, and
// not after it stopped.
func TestWatch(t *testing.T) {
	m := silent()
	changed, stop := m.Watch()
	for range 3 {
		m.Touch()
	}
	<-changed
	select {
	case <-changed:
		t.Error("told twice")
	default:
	}
	stop()
	m.Touch()
	select {
	case <-changed:
		t.Error("told after it stopped")
	default:
	}
}
