// Package render turns the decision to send a mail into what a person reads:
// subject, plain text and HTML.
//
// It says for each item what is true now, since when in the recipient's zone,
// how long, and what to do; and once why the mail came. It decides nothing,
// sends nothing and knows no SMTP. The same Mail gives the same bytes each time.
//
// Invariant: nothing that comes from data can end a line of the subject or be
// markup in the HTML.
package render

import (
	"bytes"
	"embed"
	"fmt"
	htmltemplate "html/template"
	"net/url"
	"strings"
	texttemplate "text/template"
	"time"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
)

// TemplateVersion is the version of the templates here; a Mail is decided with it.
const TemplateVersion = 1

// Options are what a mail says beside its own data.
type Options struct {
	// PublicURL is where recipients reach the console, such as
	// "https://tocsin.example.org". Empty: the mail has no link.
	PublicURL string
}

// Rendered is a mail's readable part. Text and HTML end their lines with \n.
type Rendered struct {
	// Subject is one line, not yet encoded for the wire.
	Subject    string
	Text, HTML string
}

//go:embed templates
var files embed.FS

var (
	htmlTemplate = htmltemplate.Must(htmltemplate.New("mail.html").Funcs(htmltemplate.FuncMap{
		"outlook": outlook,
	}).ParseFS(files, "templates/mail.html"))
	textTemplate = texttemplate.Must(texttemplate.New("mail.txt").Funcs(texttemplate.FuncMap{
		"pad": func(name string) string { return fmt.Sprintf("%-*s", padTo, name+":") },
	}).ParseFS(files, "templates/mail.txt"))
)

// padTo aligns the values of the plain text.
const padTo = 12

// outlook is markup that only Outlook for Windows reads (it lays out with Word
// and ignores max-width); html/template would drop the comment that it is in.
// The argument is the template's own, never data.
func outlook(markup string) htmltemplate.HTML {
	return htmltemplate.HTML("<!--[if mso]>" + markup + "<![endif]-->") //nolint:gosec // a constant of the template
}

// Message renders m. It fails only for a mail that the gateway should not have
// decided: without items, or with one that is no notification to people.
func Message(m *outboxv1.Mail, opt Options) (Rendered, error) {
	v, err := newView(m, opt)
	if err != nil {
		return Rendered{}, fmt.Errorf("render mail %q: %w", m.GetMailId(), err)
	}
	var html, text bytes.Buffer
	if err := htmlTemplate.Execute(&html, v); err != nil {
		return Rendered{}, fmt.Errorf("render mail %q as HTML: %w", m.GetMailId(), err)
	}
	if err := textTemplate.Execute(&text, v); err != nil {
		return Rendered{}, fmt.Errorf("render mail %q as text: %w", m.GetMailId(), err)
	}
	return Rendered{Subject: v.Subject, Text: text.String(), HTML: html.String()}, nil
}

// view is what the templates read. Every string in it is one line.
type view struct {
	Subject string
	// Title says the most important thing; Preheader is what mail programs show
	// beside the subject.
	Title, Preheader string
	Items            []item
	Recipient        string
	Account          string
	Zone             string
	WhyURL           string
}

// Single: the item's headline is the title already.
func (v view) Single() bool { return len(v.Items) == 1 }

type item struct {
	kind
	Headline string
	Rows     []row
	Advice   string

	device, site string
}

type row struct{ Name, Value string }

// kind is how a notification type looks and is called.
type kind struct {
	// Label stands in the brackets of the subject and on the badge.
	Label string
	// Tone chooses the colours: "bad", "warn", "good" or "info".
	Tone string
	// Text, Fill are the colours of the badge on a light ground; the dark ones
	// are in the template's style sheet, by tone.
	Text, Fill string
}

var kinds = map[notificationv1.Notification_Type]kind{
	notificationv1.Notification_ALERT:            {Label: "Motion", Tone: "info", Text: "#175cd3", Fill: "#e8f1ff"},
	notificationv1.Notification_OFFLINE:          {Label: "Offline", Tone: "bad", Text: "#b42318", Fill: "#fdeceb"},
	notificationv1.Notification_INTERNET_OFFLINE: {Label: "Internet offline", Tone: "warn", Text: "#8a4b08", Fill: "#fff4e0"},
	notificationv1.Notification_ONLINE:           {Label: "Online", Tone: "good", Text: "#067647", Fill: "#e6f8ef"},
}

func newView(m *outboxv1.Mail, opt Options) (view, error) {
	if len(m.GetItems()) == 0 {
		return view{}, fmt.Errorf("it has no items")
	}
	zone, zoneName := location(m.GetTimezone())
	v := view{Recipient: clean(m.GetRecipientName()), Account: clean(m.GetAccountName()), Zone: zoneName}
	if opt.PublicURL != "" {
		v.WhyURL = strings.TrimRight(opt.PublicURL, "/") + "/why/" + url.PathEscape(m.GetMailId())
	}
	for i, it := range m.GetItems() {
		one, err := newItem(it, m.GetDate().AsTime(), zone)
		if err != nil {
			return view{}, fmt.Errorf("item %d: %w", i+1, err)
		}
		v.Items = append(v.Items, one)
	}
	v.Subject = subject(v.Items)
	v.Title = title(v.Items)
	v.Preheader = preheader(v.Items)
	return v, nil
}

// newItem says one notification in words; written is the mail's date.
func newItem(it *outboxv1.Mail_Item, written time.Time, zone *time.Location) (item, error) {
	n := it.GetNotification()
	k, ok := kinds[n.GetType()]
	if !ok {
		return item{}, fmt.Errorf("notification %q has type %v, which is not for people", n.GetNotificationId(), n.GetType())
	}
	out := item{kind: k, device: firstOf(clean(it.GetDeviceName()), clean(n.GetDeviceId())), site: clean(it.GetSiteName())}
	if n.GetSinceTime() == nil {
		return item{}, fmt.Errorf("notification %q does not say since when", n.GetNotificationId())
	}
	since := n.GetSinceTime().AsTime()
	at := func(t time.Time) string { return clock(t.In(zone)) }
	add := func(name, value string) {
		if value != "" {
			out.Rows = append(out.Rows, row{name, value})
		}
	}
	region := firstOf(clean(it.GetRegionName()), clean(n.GetRegionId()))
	if n.GetType() == notificationv1.Notification_ALERT {
		add("Region", region)
	}
	add("Site", out.site)

	switch n.GetType() {
	case notificationv1.Notification_ALERT:
		out.Headline = "Motion at " + out.device
		out.Advice = "Have a look at the camera’s picture."
		add("At", at(since))
	case notificationv1.Notification_OFFLINE:
		out.Headline = out.device + " is offline"
		out.Advice = "Check that it has power and that its network cable or Wi-Fi works."
		if n.GetPasswordNeeded() {
			out.Headline += ": it needs its password"
			out.Advice = "It is connected but waits for its ONVIF password. Enter it in the camera’s settings."
		}
		add("Since", at(since))
		add("So far", length(written.Sub(since)))
	case notificationv1.Notification_INTERNET_OFFLINE:
		out.Headline = out.device + " has no internet connection"
		out.Advice = "Check the router and the internet line" + prefixed(" at ", out.site) + "."
		add("Since", at(since))
		add("So far", length(written.Sub(since)))
	case notificationv1.Notification_ONLINE:
		out.Headline = out.device + " is online again"
		out.Advice = "Nothing needs to be done."
		add("Since", at(since))
		if n.GetOutageSinceTime() != nil {
			began := n.GetOutageSinceTime().AsTime()
			add("Was out for", length(since.Sub(began)))
			add("Out since", at(began))
		}
	}
	if hold := n.GetHold().AsDuration(); hold >= time.Second {
		add("We waited", length(hold)+", to be sure that it lasts")
	}
	if n.GetTimeCorrected() {
		add("Note", "The device’s own clock was off; the time is that of its report’s arrival.")
	}
	return out, nil
}

// subject has the state inside the brackets and the device's name outside:
// Gmail leaves bracketed text out when it puts mails into one thread, so an
// outage and its recovery meet there and two cameras do not.
func subject(items []item) string {
	var s strings.Builder
	s.WriteString("[" + counts(items) + "] " + names(items))
	if site, ok := commonSite(items); ok {
		s.WriteString(prefixed(" at ", unbracket(site)))
	}
	return cut(s.String(), maxSubject)
}

// counts is "Offline", or "2 offline, 1 online" for several kinds, in order of
// first appearance.
func counts(items []item) string {
	var labels []string
	n := make(map[string]int)
	for _, it := range items {
		if n[it.Label] == 0 {
			labels = append(labels, it.Label)
		}
		n[it.Label]++
	}
	if len(labels) == 1 {
		return labels[0]
	}
	for i, l := range labels {
		labels[i] = fmt.Sprintf("%d %s", n[l], strings.ToLower(l))
	}
	return strings.Join(labels, ", ")
}

// names lists each device once, at most three.
func names(items []item) string {
	var all []string
	seen := make(map[string]bool)
	for _, it := range items {
		if !seen[it.device] {
			seen[it.device] = true
			all = append(all, unbracket(it.device))
		}
	}
	switch n := len(all); {
	case n == 1:
		return all[0]
	case n <= 3:
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	default:
		return fmt.Sprintf("%s, %s and %d more", all[0], all[1], n-2)
	}
}

func commonSite(items []item) (string, bool) {
	for _, it := range items {
		if it.site != items[0].site {
			return "", false
		}
	}
	return items[0].site, true
}

func title(items []item) string {
	if len(items) == 1 {
		return items[0].Headline
	}
	s := fmt.Sprintf("%d messages", len(items))
	if site, ok := commonSite(items); ok && site != "" {
		s += " about " + site
	}
	return s + ": " + counts(items)
}

// preheader is what is true now, with the first facts.
func preheader(items []item) string {
	if len(items) == 1 {
		var parts []string
		for _, r := range items[0].Rows {
			parts = append(parts, r.Name+": "+r.Value)
		}
		return strings.Join(parts, " · ")
	}
	var parts []string
	for _, it := range items[:min(len(items), 5)] {
		parts = append(parts, it.Headline)
	}
	return strings.Join(parts, " · ")
}
