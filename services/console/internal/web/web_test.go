package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/console/internal/readmodel"
	"github.com/tocsin/tocsin/services/internal/inbox"
	"github.com/tocsin/tocsin/services/internal/settings"
)

var _ Inbox = (*inbox.Inbox)(nil)

const hostile = `<script>alert(1)</script>"'&{{.}}`

// fakeNames calls everything by the same name.
type fakeNames string

func (f fakeNames) Get(k settings.Key) *settingsv1.Setting {
	switch n := string(f); k.Kind {
	case settings.KindAccount:
		return &settingsv1.Setting{Object: &settingsv1.Setting_Account{Account: &settingsv1.Account{Name: n}}}
	case settings.KindUser:
		return &settingsv1.Setting{Object: &settingsv1.Setting_User{User: &settingsv1.User{Name: n}}}
	case settings.KindSite:
		return &settingsv1.Setting{Object: &settingsv1.Setting_Site{Site: &settingsv1.Site{Name: n}}}
	case settings.KindDevice:
		return &settingsv1.Setting{Object: &settingsv1.Setting_Device{Device: &settingsv1.Device{Name: n, Site: "s", Regions: []*settingsv1.Region{{RegionId: "r", Name: n}}}}}
	}
	return nil
}

type fixture struct {
	*Web
	model *readmodel.Model
	inbox *inbox.Inbox
	ready error
}

func newFixture(t *testing.T, names Names) *fixture {
	t.Helper()
	in, err := inbox.Open("")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	f := &fixture{model: readmodel.New(log), inbox: in}
	if f.Web, err = New(Options{Log: log, Model: f.model, Names: names, Inbox: in, Ready: func() error { return f.ready }, Ingest: "http://127.0.0.1:7101"}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) get(t *testing.T, path string) (int, string, http.Header) {
	t.Helper()
	r := httptest.NewRecorder()
	f.ServeHTTP(r, httptest.NewRequest("GET", path, nil))
	return r.Code, r.Body.String(), r.Header()
}

func rec(t *testing.T, key, kind string, m interface{ MarshalVT() ([]byte, error) }) *kgo.Record {
	t.Helper()
	v, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return &kgo.Record{Key: []byte(key), Value: v, Headers: []kgo.RecordHeader{{Key: "type", Value: []byte(kind)}}}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func sec(s int) *timestamppb.Timestamp {
	return timestamppb.New(noon.Add(time.Duration(s) * time.Second))
}

// fill shows a device with a hold, and a notification of each stage, the due
// ones with every outcome there is.
func (f *fixture) fill(t *testing.T, device string) {
	t.Helper()
	ms := noon.UnixMilli()
	f.model.DeviceState(rec(t, "a/"+device, "", &statev1.DeviceState{
		Confirmed: statev1.DeviceState_ONLINE, ConfirmedSinceUnixMs: ms, PasswordNeeded: true,
		Candidate: &statev1.DeviceState_Candidate{State: statev1.DeviceState_OFFLINE, SinceUnixMs: ms, StartedUnixMs: ms, DeadlineUnixMs: ms + 300_000},
	}))
	id := 0
	for typ := range notificationv1.Notification_Type_name {
		for stage := range notificationv1.Notification_Stage_name {
			id++
			n := &notificationv1.Notification{
				NotificationId: fmt.Sprint("n", id), AccountId: "a", DeviceId: device, RegionId: "r", Type: notificationv1.Notification_Type(typ), Stage: notificationv1.Notification_Stage(stage),
				SinceTime: sec(0), DecideTime: sec(75), DeadlineTime: sec(300), OutageSinceTime: sec(-500),
			}
			f.model.Notification(rec(t, "a", "tocsin.notification.v1.Notification", n))
			d := &deliveryv1.Decision{AccountId: "a", Notification: n, DecideTime: sec(75), TraceId: "4bf9"}
			for reason := range deliveryv1.Outcome_Reason_name {
				d.Outcomes = append(d.Outcomes, &deliveryv1.Outcome{Reason: deliveryv1.Outcome_Reason(reason), UserIds: []string{"u"}})
			}
			f.model.Delivery(rec(t, "a", "tocsin.delivery.v1.Decision", d))
		}
	}
}

// Names from settings and devices reach the page as text, whatever is in them,
// on the page and in the live stream; nothing on it needs an inline script or
// style, so the policy forbids them.
func TestHostileNames(t *testing.T) {
	f := newFixture(t, fakeNames(hostile))
	f.fill(t, hostile)
	if _, err := f.inbox.Add("x@y.test", []string{"z@y.test"}, []byte("Subject: "+hostile+"\r\nFrom: "+hostile+"\r\n\r\n"+hostile+"\r\n")); err != nil {
		t.Fatal(err)
	}
	pieces, err := f.sections()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, s := range pieces {
		all["section "+s.ID] = s.HTML
	}
	for _, path := range []string{"/", "/mail/0000000001", "/mail/0000000001?view=headers", "/mail/0000000001?view=source"} {
		code, page, h := f.get(t, path)
		if code != 200 || h.Get("Content-Security-Policy") != policy || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, code, h)
		}
		all[path] = page
	}
	inline := regexp.MustCompile(`<script[^>]*>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:`)
	for name, html := range all {
		if strings.Contains(html, "<script>") || !strings.Contains(html, "&lt;script&gt;") && name != "section summary" {
			t.Errorf("%s is not escaped, or lacks the name", name)
		}
		if m := inline.FindString(html); m != "" {
			t.Errorf("%s has inline %q", name, m)
		}
	}
}

// Each way a notification can go is told in a sentence of its own.
func TestSentences(t *testing.T) {
	out := func(o ...readmodel.Outcome) *readmodel.Decision { return &readmodel.Decision{Outcomes: o} }
	mailed := func(user string, mail deliveryv1.Outcome_Reason) readmodel.Outcome {
		return readmodel.Outcome{User: user, Reason: deliveryv1.Outcome_MAILED, Mail: mail, Settled: mail != deliveryv1.Outcome_RETRYING}
	}
	for want, n := range map[string]readmodel.Notice{
		"Down 75 s, under the 300 s hold, so nobody was told.":                           {Type: notificationv1.Notification_OFFLINE, Stage: notificationv1.Notification_WITHDRAWN, Since: noon, Decided: noon.Add(75 * time.Second), Deadline: noon.Add(300 * time.Second)},
		"Down 75 s, under the hold, so nobody was told.":                                 {Type: notificationv1.Notification_OFFLINE, Stage: notificationv1.Notification_WITHDRAWN, Since: noon, Decided: noon.Add(75 * time.Second)},
		"Back for 20 s, under the 95 s hold, so nobody was told.":                        {Type: notificationv1.Notification_ONLINE, Stage: notificationv1.Notification_WITHDRAWN, Since: noon, Decided: noon.Add(20 * time.Second), Deadline: noon.Add(95 * time.Second)},
		"It turned into internet offline after 100 s; the hold goes on under that name.": {Type: notificationv1.Notification_OFFLINE, Stage: notificationv1.Notification_WITHDRAWN, Since: noon, Decided: noon.Add(100 * time.Second), Became: notificationv1.Notification_INTERNET_OFFLINE},
		"Held for 300 s before anybody is told.":                                         {Type: notificationv1.Notification_OFFLINE, Stage: notificationv1.Notification_PENDING, Since: noon, Deadline: noon.Add(300 * time.Second)},
		"The gateway has not decided yet who is told.":                                   {Stage: notificationv1.Notification_DUE},
		"Mailed to ann and bob.":                                                         {Stage: notificationv1.Notification_DUE, Decision: out(mailed("ann", deliveryv1.Outcome_SENT), mailed("bob", deliveryv1.Outcome_SENT))},
		"Mailed to ann. On its way to bob. Did not reach cy.":                            {Stage: notificationv1.Notification_DUE, Decision: out(mailed("ann", deliveryv1.Outcome_SENT), mailed("bob", deliveryv1.Outcome_RETRYING), mailed("cy", deliveryv1.Outcome_REJECTED))},
		"Nobody was told: the account has no settings yet.":                              {Stage: notificationv1.Notification_DUE, Decision: out(readmodel.Outcome{Reason: deliveryv1.Outcome_UNABLE_TO_GET_SETTINGS})},
		"Nobody was told; each person's reason is below.":                                {Stage: notificationv1.Notification_DUE, Decision: out(readmodel.Outcome{User: "a", Reason: deliveryv1.Outcome_SILENCED}, readmodel.Outcome{User: "b", Reason: deliveryv1.Outcome_THROTTLED})},
		"Nobody was told: nobody had been told of the outage.":                           {Type: notificationv1.Notification_ONLINE, Stage: notificationv1.Notification_DUE, Decision: out(readmodel.Outcome{User: "a", Reason: deliveryv1.Outcome_NOT_TOLD_OF_OUTAGE})},
		"Mailed to a, b, c and 2 others.":                                                {Stage: notificationv1.Notification_DUE, Decision: out(mailed("a", deliveryv1.Outcome_SENT), mailed("b", deliveryv1.Outcome_SENT), mailed("c", deliveryv1.Outcome_SENT), mailed("d", deliveryv1.Outcome_SENT), mailed("e", deliveryv1.Outcome_SENT))},
	} {
		f := newFixture(t, fakeNames(""))
		if got := f.noticeView(&n, nil, false).Why; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	for reason := range deliveryv1.Outcome_Reason_name {
		r := deliveryv1.Outcome_Reason(reason)
		o := readmodel.Outcome{User: "u", Reason: r}
		if r >= deliveryv1.Outcome_SENT {
			o = readmodel.Outcome{User: "u", Reason: deliveryv1.Outcome_MAILED, Mail: r}
		}
		if why, _ := outcomeWhy(&readmodel.Notice{}, o); r != deliveryv1.Outcome_UNKNOWN && (why == r.String() || !strings.HasSuffix(why, ".")) {
			t.Errorf("%v: %q is no sentence", r, why)
		}
	}
}

// The lists are bounded, and what is left out is said.
func TestBoundedLists(t *testing.T) {
	f := newFixture(t, fakeNames(""))
	for i := range maxDevices + 30 {
		f.model.DeviceState(rec(t, fmt.Sprintf("a/d%d", i), "", &statev1.DeviceState{Confirmed: statev1.DeviceState_ONLINE}))
		f.model.Notification(rec(t, "a", "tocsin.notification.v1.Notification", &notificationv1.Notification{NotificationId: fmt.Sprint("n", i), AccountId: "a", Stage: notificationv1.Notification_PENDING}))
		if _, err := f.inbox.Add("x@y.test", []string{"z@y.test"}, []byte("Subject: s\r\n\r\nx\r\n")); err != nil {
			t.Fatal(err)
		}
	}
	_, page, _ := f.get(t, "/")
	for what, want := range map[string]int{`<li class="device`: maxDevices, `<li class="notice`: maxNotices, `<a class="mail"`: maxMails, "30 more, none of them worse": 1} {
		if got := strings.Count(page, what); got != want {
			t.Errorf("%d of %s, want %d", got, what, want)
		}
	}
	if len(page) > 400<<10 {
		t.Errorf("the page has %d bytes", len(page))
	}
}

// Empty, the page teaches: the line that sends the first event is there, and
// while the log is read it says so instead of showing nothing.
func TestEmptyPage(t *testing.T) {
	f := newFixture(t, fakeNames(""))
	code, page, _ := f.get(t, "/")
	for _, want := range []string{"curl http://127.0.0.1:7101/v1/events", "No device has been heard of yet", "Nothing has happened yet", "No mail yet"} {
		if code != 200 || !strings.Contains(page, want) {
			t.Errorf("%d, lacks %q", code, want)
		}
	}
	f.ready = errors.New("reading what is there")
	_, page, _ = f.get(t, "/")
	if !strings.Contains(page, "reading what is there") || strings.Contains(page, "No device has been heard of") {
		t.Error(page)
	}
}

const letter = "From: Tocsin <t@x.test>\r\nTo: \"Ann\" <ann@x.test>\r\nSubject: Front door is offline\r\nMessage-ID: <m1@x>\r\nMIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n" +
	"--b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nplain words\r\n--b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<!doctype html><html><HEAD><title>x</title></HEAD><body><script>parent.x()</script><a href=\"http://x/\">go</a></body></html>\r\n--b--\r\n"

// A mail is read in four forms; its own HTML comes under a policy that allows
// no script and no request, in a frame without rights, its links open outside;
// and it says why it was sent.
func TestMail(t *testing.T) {
	f := newFixture(t, fakeNames("Ann"))
	s, err := f.inbox.Add("t@x.test", []string{"ann@x.test"}, []byte(letter))
	if err != nil {
		t.Fatal(err)
	}
	n := &notificationv1.Notification{NotificationId: "n1", AccountId: "a", DeviceId: "d", Type: notificationv1.Notification_OFFLINE, Stage: notificationv1.Notification_DUE, SinceTime: sec(0), DecideTime: sec(300)}
	f.model.Delivery(rec(t, "a", "tocsin.delivery.v1.Decision", &deliveryv1.Decision{AccountId: "a", Notification: n, Outcomes: []*deliveryv1.Outcome{{Reason: deliveryv1.Outcome_MAILED, UserIds: []string{"ann"}, MailIds: []string{"m1"}}}}))
	f.model.Delivery(rec(t, "a", "tocsin.delivery.v1.MailOutcome", &deliveryv1.MailOutcome{AccountId: "a", MailId: "m1", NotificationIds: []string{"n1"}, Reason: deliveryv1.Outcome_SENT, MessageId: "m1@x", Settled: true, Result: &outboxv1.Result{Attempt: 1, ReplyCode: 250}}))

	for path, want := range map[string]string{
		"/mail/" + s.ID:                   `sandbox="allow-popups allow-popups-to-escape-sandbox"`,
		"/mail/" + s.ID + "?view=text":    "plain words",
		"/mail/" + s.ID + "?view=":        "<dd>Ann &lt;ann@x.test&gt;</dd>",
		"/mail/" + s.ID + "?view=headers": "&lt;m1@x&gt;",
		"/mail/" + s.ID + "?view=source":  "--b--",
		"/mail/" + s.ID + "?view=nothing": "<iframe",
		"/why/m1":                         "Mailed to Ann.",
		"/":                               `<a href="/mail/` + s.ID + `">Read the mail</a>`,
	} {
		code, page, _ := f.get(t, path)
		if code != 200 || !strings.Contains(page, want) || strings.Contains(page, "parent.x()") && !strings.Contains(path, "source") {
			t.Errorf("%s: %d, lacks %s\n%.2000s", path, code, want, page)
		}
		if strings.HasPrefix(path, "/mail/") && !strings.Contains(page, "Why this mail") {
			t.Errorf("%s does not say why", path)
		}
	}
	code, body, h := f.get(t, "/mail/"+s.ID+"/html")
	if code != 200 || !strings.Contains(body, `<HEAD><base target="_blank"><title>`) {
		t.Errorf("%d %s", code, body)
	}
	csp := h.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "sandbox allow-popups", "frame-ancestors 'self'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("policy %s lacks %s", csp, want)
		}
	}
	if strings.Contains(csp, "allow-scripts") || strings.Contains(csp, "allow-same-origin") {
		t.Error(csp)
	}
	for _, path := range []string{"/why/m2", "/mail/0000000099", "/mail/..%2f..", "/mail/0000000099/html", "/nothing"} {
		if code, _, _ := f.get(t, path); code != 404 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// The stream sends all sections first, then only those that changed, a beat
// when nothing does, and no more pages than fit.
func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, fakeNames("Front door"))
		ctx, cancel := context.WithCancel(context.Background())
		w := newStream()
		done := make(chan struct{})
		go func() {
			f.ServeHTTP(w, httptest.NewRequest("GET", "/live", nil).WithContext(ctx))
			close(done)
		}()
		synctest.Wait()
		if got := w.sections(t); got != "summary devices notices inbox" {
			t.Errorf("first %q", got)
		}
		f.fill(t, "d")
		time.Sleep(settle)
		synctest.Wait()
		if got := w.sections(t); got != "summary devices notices" {
			t.Errorf("then %q", got)
		}
		if _, err := f.inbox.Add("x@y.test", []string{"z@y.test"}, []byte("Subject: s\r\n\r\nx\r\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settle)
		synctest.Wait()
		if got := w.sections(t); !strings.HasSuffix(got, "inbox") || strings.Contains(got, "notices") {
			t.Errorf("a mail: %q", got)
		}
		time.Sleep(heartbeat)
		synctest.Wait()
		if got := w.take(); !strings.HasPrefix(got, "event: beat\n") || strings.Contains(got, "section") {
			t.Errorf("in silence: %.200q", got)
		}
		f.live = maxLive
		if code, _, h := f.get(t, "/live"); code != 503 || h.Get("Retry-After") == "" {
			t.Errorf("one too many: %d", code)
		}
		cancel()
		<-done
		if f.live != maxLive-1 {
			t.Errorf("%d pages are counted after one left", f.live)
		}
	})
}

// stream is a response that is read while it is written.
type stream struct {
	header http.Header
	mu     sync.Mutex
	body   strings.Builder
}

func newStream() *stream { return &stream{header: http.Header{}} }

func (s *stream) Header() http.Header              { return s.header }
func (s *stream) WriteHeader(int)                  {}
func (s *stream) Flush()                           {}
func (s *stream) SetReadDeadline(time.Time) error  { return nil }
func (s *stream) SetWriteDeadline(time.Time) error { return nil }

func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.body.Write(b)
}

func (s *stream) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.body.String()
	s.body.Reset()
	return text
}

func (s *stream) sections(t *testing.T) string {
	t.Helper()
	var ids []string
	lines := bufio.NewScanner(bytes.NewBufferString(s.take()))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: {")
		if !ok {
			continue
		}
		var x section
		if err := json.Unmarshal([]byte("{"+data), &x); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, x.ID)
	}
	return strings.Join(ids, " ")
}
