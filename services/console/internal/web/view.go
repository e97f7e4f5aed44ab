package web

import (
	"cmp"
	"fmt"
	"html/template"
	"net/mail"
	"slices"
	"strings"
	"time"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/console/internal/readmodel"
	"github.com/tocsin/tocsin/services/internal/inbox"
	"github.com/tocsin/tocsin/services/internal/settings"
)

// Names are the settings that the page takes names from.
type Names interface {
	// Get is one object, or nil.
	Get(k settings.Key) *settingsv1.Setting
}

// view is what the page's templates show.
type view struct {
	Now     int64 // ms, so that a script can count down by the server's clock
	Waiting string
	Ingest  string

	Headline string
	Tone     string
	Counts   readmodel.Counts
	Devices  []deviceView
	Hidden   int // devices that are not listed
	Notices  []noticeView
	HasInbox bool
	Mails    []mailRow
}

type deviceView struct {
	ID      string // of the element
	Name    string
	Key     string // account/device
	Detail  string
	Bridge  bool
	Tone    string
	State   string
	Since   time.Time
	Was     string // under a switched off device: what it was
	Hold    *holdView
	Problem string
}

type holdView struct {
	Word               string
	Tone               string
	Started, Deadline  time.Time
	StartedMS, EndMS   int64
	LengthMS, PassedMS int64
}

type noticeView struct {
	ID       string
	Headline string
	Detail   string
	Tone     string // of what it is about
	Open     bool   // the reasons stand open
	Badge    string
	BadgeOf  string
	At       time.Time
	Since    time.Time
	Why      string
	Deadline time.Time // of a hold that runs
	Outcomes []outcomeView
	More     int
	Facts    []factView
}

type outcomeView struct {
	Who  string
	Why  string
	Rule string
	At   time.Time
	Mail string // id in the inbox
	Tone string
}

type factView struct {
	Name string
	Text string
	Time time.Time
}

type mailRow struct {
	ID      string
	To      string
	Subject string
	At      time.Time
	Copy    int
	Problem string
	Tone    string
}

type mailView struct {
	Now     int64
	Mail    inbox.Message
	View    string
	Views   []string
	Body    string
	About   []noticeView
	Newer   string
	Older   string
	Subject string
	From    string
	To      string
	HTMLURL string
}

// whyView is the page that a mail's link "why did I get this" leads to.
type whyView struct {
	Now   int64
	About []noticeView
}

func (w *Web) device(account, id string) *settingsv1.Device {
	return w.Names.Get(settings.Key{Account: account, Kind: settings.KindDevice, ID: id}).GetDevice()
}

func (w *Web) deviceName(account, id string) string {
	return cmp.Or(w.device(account, id).GetName(), id)
}

func (w *Web) accountName(id string) string {
	return cmp.Or(w.Names.Get(settings.Key{Account: id, Kind: settings.KindAccount, ID: id}).GetAccount().GetName(), id)
}

func (w *Web) userName(account, id string) string {
	if id == "" {
		return "The account"
	}
	u := w.Names.Get(settings.Key{Account: account, Kind: settings.KindUser, ID: id}).GetUser()
	return cmp.Or(u.GetName(), u.GetEmail(), id)
}

// detail is where a device is: its site, and its account where there are several.
func (w *Web) detail(account, id string, several bool) string {
	var parts []string
	if site := w.device(account, id).GetSite(); site != "" {
		parts = append(parts, cmp.Or(w.Names.Get(settings.Key{Account: account, Kind: settings.KindSite, ID: site}).GetSite().GetName(), site))
	}
	if several || len(parts) == 0 {
		parts = append(parts, w.accountName(account))
	}
	return strings.Join(parts, " · ")
}

// view is the page as of now.
func (w *Web) view() *view {
	o := w.Model.Overview(maxDevices, maxNotices)
	v := &view{Now: time.Now().UnixMilli(), Ingest: w.Ingest, Counts: o.Counts, HasInbox: w.Inbox != nil}
	if err := w.Ready(); err != nil {
		v.Waiting = err.Error()
	}
	v.Headline, v.Tone = summary(o.Counts, v.Waiting != "")
	for i := range o.Devices {
		v.Devices = append(v.Devices, w.deviceView(&o.Devices[i], o.Counts.Accounts > 1))
	}
	v.Hidden = o.Counts.Devices - len(o.Devices)
	if w.Inbox != nil {
		for _, m := range w.Inbox.List(maxMails) {
			v.Mails = append(v.Mails, mailRow{
				ID: m.ID, To: cmp.Or(addresses(m.To), strings.Join(m.Recipients, ", ")), Subject: cmp.Or(m.Subject, "(no subject)"),
				At: m.ReceiveTime, Copy: m.Copy, Problem: m.Problem,
			})
		}
	}
	ids := w.inboxIDs()
	for i := range o.Notices {
		v.Notices = append(v.Notices, w.noticeView(&o.Notices[i], ids, o.Counts.Accounts > 1))
	}
	return v
}

// summary is the page's one sentence.
func summary(c readmodel.Counts, waiting bool) (sentence, tone string) {
	var parts []string
	switch {
	case waiting:
		return "One moment…", "none"
	case c.Devices == 0:
		return "Nothing to watch yet", "none"
	}
	if c.Out > 0 {
		parts = append(parts, count(c.Out, "device is out", "devices are out"))
	}
	if c.Held > 0 {
		parts = append(parts, count(c.Held, "hold is running", "holds are running"))
	}
	switch {
	case c.Out > 0:
		return strings.Join(parts, ", "), "out"
	case c.Held > 0:
		return parts[0], "hold"
	}
	return "All is quiet", "ok"
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func (w *Web) deviceView(d *readmodel.Device, several bool) deviceView {
	v := deviceView{
		ID: elementID("d", d.Account, d.ID), Name: w.deviceName(d.Account, d.ID), Detail: w.detail(d.Account, d.ID, several), Key: d.Account + "/" + d.ID,
		Bridge: w.device(d.Account, d.ID).GetKind() == settingsv1.Device_BRIDGE,
		Tone:   tone(d.State), State: stateWord(d.State), Since: d.Since,
	}
	if d.PasswordNeeded && d.Out() {
		v.Problem = "needs its ONVIF password"
	}
	if d.Off {
		v.Tone, v.State, v.Since = "off", "Switched off", d.Heard
		if d.Out() {
			v.Was = "was " + strings.ToLower(stateWord(d.State))
		}
	}
	if h := d.Hold; h != nil {
		v.Hold = &holdView{
			Word: strings.ToLower(stateWord(h.State)), Tone: tone(h.State), Started: h.Started, Deadline: h.Deadline,
			StartedMS: h.Started.UnixMilli(), EndMS: h.Deadline.UnixMilli(),
			LengthMS: max(1, h.Deadline.Sub(h.Started).Milliseconds()),
			PassedMS: min(max(0, time.Since(h.Started).Milliseconds()), h.Deadline.Sub(h.Started).Milliseconds()),
		}
	}
	return v
}

func noticeTone(t notificationv1.Notification_Type) string {
	switch t {
	case notificationv1.Notification_ALERT:
		return "motion"
	case notificationv1.Notification_OFFLINE:
		return "out"
	case notificationv1.Notification_INTERNET_OFFLINE:
		return "net"
	}
	return "ok"
}

func (w *Web) noticeView(n *readmodel.Notice, inboxIDs map[string]string, several bool) noticeView {
	v := noticeView{
		ID: elementID("n", n.Account, n.ID), Headline: headline(n, w.deviceName(n.Account, n.Device)), Detail: w.detail(n.Account, n.Device, several),
		Tone: noticeTone(n.Type), At: n.Decided, Since: n.Since,
	}
	v.Badge, v.BadgeOf = badge(n)
	fact := func(name, text string) { v.Facts = append(v.Facts, factView{Name: name, Text: text}) }
	v.Facts = append(v.Facts, factView{Name: "Since", Time: n.Since})
	switch n.Stage {
	case notificationv1.Notification_PENDING:
		v.At, v.Deadline = n.Since, n.Deadline
		v.Why = "Held for " + span(n.Deadline.Sub(n.Since)) + " before anybody is told."
	case notificationv1.Notification_WITHDRAWN:
		v.Why = withdrawnWhy(n)
		v.Facts = append(v.Facts, factView{Name: "Withdrawn", Time: n.Decided})
	default:
		v.Facts = append(v.Facts, factView{Name: "Due", Time: n.Decided})
		if n.Type == notificationv1.Notification_ALERT {
			if r := w.regionName(n); r != "" {
				fact("Region", r)
			}
		} else {
			fact("Hold", span(n.Hold))
		}
	}
	if n.Type == notificationv1.Notification_ONLINE && !n.OutageSince.IsZero() {
		fact("Out for", span(n.Since.Sub(n.OutageSince)))
	}
	if n.PasswordNeeded {
		fact("Reason", "the camera waits for its ONVIF password")
	}
	if n.TimeCorrected {
		fact("Time", "the source's clock was not believed")
	}
	if !n.Paused.IsZero() {
		v.Facts = append(v.Facts, factView{Name: "Switched off", Time: n.Paused})
	}
	if n.Stage == notificationv1.Notification_DUE || n.Stage == notificationv1.Notification_LATE {
		if n.Decision == nil {
			v.Why = "The gateway has not decided yet who is told."
		} else {
			w.decisionView(&v, n, inboxIDs)
		}
	}
	fact("Device", n.Account+"/"+n.Device)
	fact("Notification", n.ID)
	return v
}

func (w *Web) decisionView(v *noticeView, n *readmodel.Notice, inboxIDs map[string]string) {
	d := n.Decision
	v.Why = decisionWhy(d, func(user string) string { return w.userName(n.Account, user) })
	v.More = d.More
	for _, o := range d.Outcomes {
		x := outcomeView{Who: w.userName(n.Account, o.User), At: o.MailAt, Mail: inboxIDs[o.MessageID], Tone: "none"}
		x.Why, x.Rule = outcomeWhy(n, o)
		switch {
		case o.Reason != deliveryv1.Outcome_MAILED:
		case o.Mail == deliveryv1.Outcome_SENT:
			x.Tone = "ok"
		case o.Settled:
			x.Tone = "out"
		default:
			x.Tone = "hold"
		}
		v.Outcomes = append(v.Outcomes, x)
	}
	v.Facts = append(v.Facts, factView{Name: "Decided", Time: d.At})
	v.Facts = append(v.Facts, factView{Name: "Delay", Text: fmt.Sprintf("%d ms beside the hold", d.Delay.Milliseconds())})
	if d.TraceID != "" {
		v.Facts = append(v.Facts, factView{Name: "Trace", Text: d.TraceID})
	}
}

func (w *Web) regionName(n *readmodel.Notice) string {
	for _, r := range w.device(n.Account, n.Device).GetRegions() {
		if r.GetRegionId() == n.Region {
			return cmp.Or(r.GetName(), n.Region)
		}
	}
	return n.Region
}

// elementID is an id for the page: only letters that need no escape, and the
// same for the same thing, so that the script finds it again.
func elementID(kind, account, id string) string {
	var b strings.Builder
	b.WriteString(kind)
	for _, part := range []string{account, id} {
		b.WriteByte('-')
		for _, c := range []byte(part) {
			if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "_%02x", c)
			}
		}
	}
	return b.String()
}

var mailViews = []string{"html", "text", "headers", "source"}

// maxSource bounds what of a mail's source is shown.
const maxSource = 256 << 10

func (w *Web) mailView(m inbox.Message, as string) *mailView {
	v := &mailView{Now: time.Now().UnixMilli(), Mail: m, Views: mailViews, Subject: cmp.Or(m.Subject, "(no subject)"), HTMLURL: "/mail/" + m.ID + "/html"}
	v.From, v.To = cmp.Or(addresses(m.From), m.Sender), cmp.Or(addresses(m.To), strings.Join(m.Recipients, ", "))
	v.View = mailViews[0]
	if m.HTML == "" {
		v.View = "text"
	}
	for _, name := range mailViews {
		if as == name {
			v.View = name
		}
	}
	switch v.View {
	case "text":
		v.Body = m.Text
	case "source":
		v.Body = string(m.Raw[:min(len(m.Raw), maxSource)])
	}
	list := w.Inbox.List(0)
	for i := range list {
		if list[i].ID != m.ID {
			continue
		}
		if i > 0 {
			v.Newer = list[i-1].ID
		}
		if i+1 < len(list) {
			v.Older = list[i+1].ID
		}
	}
	if m.MessageID != "" {
		v.About = w.about(func(o readmodel.Outcome) bool { return o.MessageID == m.MessageID })
	}
	return v
}

// about are the notifications with an outcome like that.
func (w *Web) about(match func(readmodel.Outcome) bool) []noticeView {
	var out []noticeView
	for _, n := range w.Model.Overview(0, 1<<20).Notices {
		if n.Decision != nil && slices.ContainsFunc(n.Decision.Outcomes, match) {
			v := w.noticeView(&n, w.inboxIDs(), true)
			v.Open = true
			out = append(out, v)
		}
	}
	return out
}

// inboxIDs are the ids of the mails in the inbox by their Message-ID.
func (w *Web) inboxIDs() map[string]string {
	ids := map[string]string{}
	if w.Inbox == nil {
		return ids
	}
	for _, m := range w.Inbox.List(0) {
		if m.MessageID != "" {
			ids[m.MessageID] = m.ID
		}
	}
	return ids
}

// addresses writes a list of addresses without the quotes that the mail needs.
func addresses(header string) string {
	list, err := mail.ParseAddressList(header)
	if err != nil {
		return header
	}
	var out []string
	for _, a := range list {
		if a.Name == "" {
			out = append(out, a.Address)
		} else {
			out = append(out, a.Name+" <"+a.Address+">")
		}
	}
	return strings.Join(out, ", ")
}

// openLinksElsewhere makes a mail's links leave its frame.
func openLinksElsewhere(html string) string {
	const base = `<base target="_blank">`
	lower := strings.ToLower(html)
	if len(lower) != len(html) {
		return html // a letter whose small form is longer; the frame keeps its links
	}
	if i := strings.Index(lower, "<head"); i >= 0 {
		if j := strings.IndexByte(html[i:], '>'); j >= 0 {
			return html[:i+j+1] + base + html[i+j+1:]
		}
	}
	return html
}

// when writes an instant; the script puts it into the viewer's zone. How is
// "clock" (time, with the day if it is another), "ago", "for" or "full".
func when(how string, t time.Time) template.HTML {
	if t.IsZero() {
		return "—"
	}
	t = t.UTC()
	text := t.Format("2006-01-02 15:04:05 UTC")
	// Everything here is of our own making, letters and digits.
	return template.HTML(`<time datetime="` + t.Format("2006-01-02T15:04:05.000Z") + `" data-how="` + template.HTMLEscapeString(how) + `">` + text + `</time>`)
}
