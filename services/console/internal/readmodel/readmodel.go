// Package readmodel keeps what the console shows: each device as the monitor
// last wrote it, and the last notifications with their stages joined and what
// became of them. It is rebuilt from the topics at every start.
//
// It owns no settings (names are asked for when something is shown), reads no
// Kafka (records are handed to it) and decides nothing.
//
// Invariant: each record is applied as it was read, in the order of its
// partition; a record that cannot be read changes nothing. What it keeps of
// notifications is bounded, of devices as many as there are.
package readmodel

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/internal/kafka"
)

// Bounds of what is kept.
const (
	// maxNotices is how many notifications are kept at least; the longest
	// untouched go first, a tenth of them at once.
	maxNotices = 1000
	// maxOutcomes is how many recipients of one notification are kept.
	maxOutcomes = 200
)

// State is a device's state as rules.md names it.
type State = statev1.DeviceState_State

// Device is one device as the monitor knows it.
type Device struct {
	Account, ID string
	// State is what is confirmed; Since is when it began, by the device's word.
	State State
	Since time.Time
	// Off is true while the user has switched the device off.
	Off bool
	// PasswordNeeded is the reason of a confirmed Offline.
	PasswordNeeded bool
	// Hold is what may become confirmed, or nil.
	Hold *Hold
	// Heard is the receive time of the last sample that was applied.
	Heard time.Time
}

// Out says whether an outage is confirmed.
func (d *Device) Out() bool {
	return d.State == statev1.DeviceState_OFFLINE || d.State == statev1.DeviceState_INTERNET_OFFLINE
}

// Hold is a wait before telling.
type Hold struct {
	State    State
	Since    time.Time
	Started  time.Time
	Deadline time.Time
}

// Notice is one notification with its stages joined.
type Notice struct {
	Account, Device, ID string
	Type                notificationv1.Notification_Type
	// Stage is PENDING, WITHDRAWN, DUE or LATE.
	Stage notificationv1.Notification_Stage
	Since time.Time
	// Deadline is the end of the hold, as the last PENDING had it; zero for
	// what is not held.
	Deadline time.Time
	// Decided is when the stage was reached.
	Decided time.Time
	// Hold is the wait that was spent before it was Due.
	Hold time.Duration
	// OutageSince is when the outage began that an ONLINE ends.
	OutageSince    time.Time
	Became         notificationv1.Notification_Type
	PasswordNeeded bool
	TimeCorrected  bool
	Region         string
	// Paused is when the device was switched off during the outage, if it is.
	Paused time.Time
	// Decision is what the gateway decided; nil before it has.
	Decision *Decision

	touched uint64
}

// Decision is what became of a notification.
type Decision struct {
	At time.Time
	// Delay is alertDelay without the deliberate hold.
	Delay    time.Duration
	TraceID  string
	Outcomes []Outcome
	// More counts the outcomes that were too many to keep.
	More int
}

// Outcome is one recipient's part of a decision; User is empty where it is the
// account's.
type Outcome struct {
	User   string
	Reason deliveryv1.Outcome_Reason
	MailID string
	// MessageID is the mail's, once it was tried.
	MessageID string
	// Mail is the last that is known of the mail: an attempt's result, or how
	// it ended without one; zero before the first.
	Mail    deliveryv1.Outcome_Reason
	MailAt  time.Time
	Attempt uint32
	// Code and Text are the relay's reply.
	Code    uint32
	Text    string
	Settled bool
}

// Counts are of all devices.
type Counts struct {
	Accounts, Devices, Online, Out, Held, Off, Unknown int
}

// Overview is what the page shows.
type Overview struct {
	Counts  Counts
	Devices []Device // what needs attention first, at most as many as asked for
	Notices []Notice // the latest first
}

type deviceKey struct{ account, id string }

type noticeKey struct{ account, id string }

// Model is safe for use by several goroutines.
type Model struct {
	log *slog.Logger

	mu       sync.Mutex
	devices  map[deviceKey]*Device
	notices  map[noticeKey]*Notice
	touches  uint64 // counts changes of notices
	version  uint64
	watchers map[chan struct{}]struct{}
}

// New is an empty model.
func New(log *slog.Logger) *Model {
	return &Model{
		log: log, devices: map[deviceKey]*Device{}, notices: map[noticeKey]*Notice{},
		watchers: map[chan struct{}]struct{}{},
	}
}

// Watch is a channel that gets a value whenever something changed, not one for
// each change; call stop when done.
func (m *Model) Watch() (changed <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	m.mu.Lock()
	m.watchers[c] = struct{}{}
	m.mu.Unlock()
	return c, func() {
		m.mu.Lock()
		delete(m.watchers, c)
		m.mu.Unlock()
	}
}

// Touch says that something changed that is shown with the model (a name).
func (m *Model) Touch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touch()
}

func (m *Model) touch() {
	m.version++
	for c := range m.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Version changes with everything that is shown.
func (m *Model) Version() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// DeviceState takes one record of tocsin.device-state.
func (m *Model) DeviceState(rec *kgo.Record) {
	key := string(rec.Key)
	// A monitor that filters by data centre keeps its states under "c001!".
	if _, rest, ok := strings.Cut(key, "!"); ok {
		key = rest
	}
	account, id, ok := strings.Cut(key, "/")
	if !ok {
		return // a partition's position
	}
	k := deviceKey{account, id}
	if rec.Value == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.devices, k)
		m.touch()
		return
	}
	s := &statev1.DeviceState{}
	if err := s.UnmarshalVT(rec.Value); err != nil {
		m.unreadable(rec, err)
		return
	}
	d := &Device{
		Account: account, ID: id,
		State: s.GetConfirmed(), Since: ms(s.GetConfirmedSinceUnixMs()), PasswordNeeded: s.GetPasswordNeeded(),
		Off:   s.GetLast().GetState() == statev1.DeviceState_OFF,
		Heard: ms(s.GetLast().GetReceiveUnixMs()),
	}
	if c := s.GetCandidate(); c != nil {
		d.Hold = &Hold{State: c.GetState(), Since: ms(c.GetSinceUnixMs()), Started: ms(c.GetStartedUnixMs()), Deadline: ms(c.GetDeadlineUnixMs())}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices[k] = d
	m.touch()
}

// Notification takes one record of tocsin.notifications; all but
// notifications (ticks, mail results) is passed over.
func (m *Model) Notification(rec *kgo.Record) {
	if kafka.Header(rec, kafka.HeaderType) != "tocsin.notification.v1.Notification" {
		return
	}
	n := &notificationv1.Notification{}
	if err := n.UnmarshalVT(rec.Value); err != nil {
		m.unreadable(rec, err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apply(n)
	m.touch()
}

// notice is the notice of a notification, now the last touched, new if need be.
func (m *Model) notice(n *notificationv1.Notification) *Notice {
	k := noticeKey{n.GetAccountId(), n.GetNotificationId()}
	m.touches++
	x := m.notices[k]
	if x == nil {
		if len(m.notices) >= maxNotices+maxNotices/10 {
			for _, old := range m.latest()[maxNotices:] {
				delete(m.notices, noticeKey{old.Account, old.ID})
			}
		}
		x = &Notice{Account: k.account, Device: n.GetDeviceId(), ID: k.id, Type: n.GetType()}
		m.notices[k] = x
	}
	x.touched = m.touches
	return x
}

// latest are all notices, the last touched first.
func (m *Model) latest() []*Notice {
	all := slices.Collect(maps.Values(m.notices))
	slices.SortFunc(all, func(a, b *Notice) int { return cmp.Compare(b.touched, a.touched) })
	return all
}

func (m *Model) apply(n *notificationv1.Notification) *Notice {
	x := m.notice(n)
	switch n.GetStage() {
	case notificationv1.Notification_PAUSED:
		x.Paused = at(n.GetDecideTime())
		return x
	case notificationv1.Notification_RESUMED:
		x.Paused = time.Time{}
		return x
	case notificationv1.Notification_PENDING:
		x.Deadline = at(n.GetDeadlineTime())
	}
	x.Stage, x.Since, x.Decided = n.GetStage(), at(n.GetSinceTime()), at(n.GetDecideTime())
	x.Hold, x.OutageSince, x.Became = n.GetHold().AsDuration(), at(n.GetOutageSinceTime()), n.GetBecame()
	x.PasswordNeeded, x.TimeCorrected, x.Region = n.GetPasswordNeeded(), n.GetTimeCorrected(), n.GetRegionId()
	return x
}

// Delivery takes one record of tocsin.deliveries.
func (m *Model) Delivery(rec *kgo.Record) {
	switch kafka.Header(rec, kafka.HeaderType) {
	case "tocsin.delivery.v1.Decision":
		d := &deliveryv1.Decision{}
		if err := d.UnmarshalVT(rec.Value); err != nil {
			m.unreadable(rec, err)
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.decision(d)
		m.touch()
	case "tocsin.delivery.v1.MailOutcome":
		o := &deliveryv1.MailOutcome{}
		if err := o.UnmarshalVT(rec.Value); err != nil {
			m.unreadable(rec, err)
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.mailOutcome(o) {
			m.touch()
		}
	}
}

func (m *Model) decision(d *deliveryv1.Decision) {
	n := d.GetNotification()
	if n == nil {
		return
	}
	// The topics are read side by side: the decision may come before what it
	// is about.
	x := m.apply(n)
	if x.Decision == nil || !d.GetFurther() {
		x.Decision = &Decision{At: at(d.GetDecideTime()), Delay: d.GetAlertDelayWithoutHold().AsDuration(), TraceID: d.GetTraceId()}
	}
	for _, o := range d.GetOutcomes() {
		users := o.GetUserIds()
		if len(users) == 0 {
			users = []string{""}
		}
		for i, u := range users {
			if len(x.Decision.Outcomes) >= maxOutcomes {
				x.Decision.More += len(users) - i
				break
			}
			out := Outcome{User: u, Reason: o.GetReason()}
			if i < len(o.GetMailIds()) {
				out.MailID = o.GetMailIds()[i]
			}
			x.Decision.Outcomes = append(x.Decision.Outcomes, out)
		}
	}
}

// mailOutcome says whether anything kept has changed.
func (m *Model) mailOutcome(o *deliveryv1.MailOutcome) bool {
	changed := false
	for _, id := range o.GetNotificationIds() {
		notice := m.notices[noticeKey{o.GetAccountId(), id}]
		if notice == nil || notice.Decision == nil {
			continue
		}
		outcomes := notice.Decision.Outcomes
		for i := range outcomes {
			x := &outcomes[i]
			if x.MailID != o.GetMailId() {
				continue
			}
			r := o.GetResult()
			x.MessageID = o.GetMessageId()
			x.Mail, x.MailAt, x.Settled = o.GetReason(), at(o.GetTime()), o.GetSettled()
			x.Attempt, x.Code, x.Text = r.GetAttempt(), r.GetReplyCode(), r.GetText()
			changed = true
		}
	}
	return changed
}

func (m *Model) unreadable(rec *kgo.Record, err error) {
	m.log.Error("record is not readable", "topic", rec.Topic, "partition", rec.Partition, "offset", rec.Offset, "err", err)
}

// Overview is at most devices devices, those that need attention first, and
// at most notices notifications.
func (m *Model) Overview(devices, notices int) Overview {
	m.mu.Lock()
	defer m.mu.Unlock()
	var o Overview
	accounts := map[string]struct{}{}
	var first []*Device // the first few in order; there may be a million more
	for _, d := range m.devices {
		o.Counts.Devices++
		accounts[d.Account] = struct{}{}
		switch {
		case d.Off:
			o.Counts.Off++
		case d.Out():
			o.Counts.Out++
		case d.State == statev1.DeviceState_ONLINE:
			o.Counts.Online++
		default:
			o.Counts.Unknown++
		}
		if d.Hold != nil {
			o.Counts.Held++
		}
		if len(first) == devices && (devices == 0 || compare(d, first[devices-1]) > 0) {
			continue
		}
		i, _ := slices.BinarySearchFunc(first, d, compare)
		first = slices.Insert(first, i, d)
		first = first[:min(devices, len(first))]
	}
	o.Counts.Accounts = len(accounts)
	for _, d := range first {
		o.Devices = append(o.Devices, *d) // Hold is never changed in place
	}
	for _, x := range m.latest() {
		if len(o.Notices) == notices {
			break
		}
		n := *x
		if n.Decision != nil {
			d := *n.Decision
			d.Outcomes = slices.Clone(d.Outcomes)
			n.Decision = &d
		}
		o.Notices = append(o.Notices, n)
	}
	return o
}

func compare(a, b *Device) int {
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Account, b.Account), cmp.Compare(a.ID, b.ID))
}

// rank orders devices: out, held, unknown, online, switched off.
func rank(d *Device) int {
	switch {
	case d.Out() && !d.Off:
		return 0
	case d.Hold != nil:
		return 1
	case d.Off:
		return 4
	case d.State == statev1.DeviceState_ONLINE:
		return 3
	}
	return 2
}

func ms(unix int64) time.Time {
	if unix == 0 {
		return time.Time{}
	}
	return time.UnixMilli(unix).UTC()
}

func at(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
