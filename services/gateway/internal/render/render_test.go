package render

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	outboxv1 "github.com/tocsin/tocsin/proto/gen/tocsin/outbox/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(d)) }

func mail(written time.Duration, items ...*outboxv1.Mail_Item) *outboxv1.Mail {
	return &outboxv1.Mail{
		MailId: "m-7f3a", AccountId: "00011557", UserId: "ca0ffa8c", Address: "ann@acme.test", RecipientName: "Ann", AccountName: "Acme",
		Timezone: "America/Chicago", MessageId: "m-7f3a@site.test", Date: at(written), Items: items, TemplateVersion: TemplateVersion,
	}
}

func one(device, site string, n *notificationv1.Notification) *outboxv1.Mail_Item {
	n.NotificationId, n.AccountId, n.DeviceId = "n1", "00011557", "100a9af6"
	n.Stage = notificationv1.Notification_DUE
	return &outboxv1.Mail_Item{Notification: n, DeviceName: device, SiteName: site}
}

func offline() *notificationv1.Notification {
	return &notificationv1.Notification{Type: notificationv1.Notification_OFFLINE, SinceTime: at(0), Hold: durationpb.New(5 * time.Minute)}
}

func samples() map[string]*outboxv1.Mail {
	motion := one("Front door", "Main street", &notificationv1.Notification{Type: notificationv1.Notification_ALERT, SinceTime: at(0), RegionId: "door"})
	motion.RegionName = "Doorstep"
	password := offline()
	password.PasswordNeeded = true
	corrected := offline()
	corrected.TimeCorrected = true
	hostile := one("</td><script>alert(1)</script>[Lobby]\r\nBcc: eve@evil.test", "Main\u2028street \"<b>\" & \u202egnp.exe", corrected)
	many := mail(301*time.Second,
		one("Front door", "Main street", offline()),
		one("Yard", "Main street", offline()),
		one("Bridge 1", "Main street", &notificationv1.Notification{Type: notificationv1.Notification_INTERNET_OFFLINE, SinceTime: at(10 * time.Second)}),
		one("Gate", "Main street", &notificationv1.Notification{Type: notificationv1.Notification_ONLINE, SinceTime: at(60 * time.Second), OutageSinceTime: at(-26 * time.Hour)}))
	return map[string]*outboxv1.Mail{
		"alert":            mail(2*time.Second, motion),
		"offline":          mail(300*time.Second, one("Front door", "Main street", offline())),
		"password":         mail(300*time.Second, one("Front door", "Main street", password)),
		"internet-offline": mail(300*time.Second, one("Bridge 1", "Main street", &notificationv1.Notification{Type: notificationv1.Notification_INTERNET_OFFLINE, SinceTime: at(0), Hold: durationpb.New(5 * time.Minute)})),
		"online":           mail(1095*time.Second, one("Front door", "Main street", &notificationv1.Notification{Type: notificationv1.Notification_ONLINE, SinceTime: at(1000 * time.Second), OutageSinceTime: at(0), Hold: durationpb.New(95 * time.Second)})),
		"several":          many,
		"hostile":          mail(300*time.Second, hostile),
	}
}

// Each kind of mail reads as it did when a person last looked at it.
func TestGolden(t *testing.T) {
	for name, m := range samples() {
		t.Run(name, func(t *testing.T) {
			r, err := Message(m, Options{PublicURL: "https://tocsin.example.org/"})
			if err != nil {
				t.Fatal(err)
			}
			for ext, got := range map[string]string{"txt": "Subject: " + r.Subject + "\n\n" + r.Text, "html": r.HTML} {
				path := filepath.Join("testdata", name+"."+ext)
				if *update {
					if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatalf("%v (run the test with -update and look at what it writes)", err)
				}
				if d := cmp.Diff(string(want), got); d != "" {
					t.Errorf("%s (-want +got):\n%s", path, d)
				}
			}
		})
	}
}

// Names from data are text: no markup, no line break in the subject, nothing
// that turns the direction of writing, and no brackets outside ours.
func TestHostileNames(t *testing.T) {
	r, err := Message(samples()["hostile"], Options{PublicURL: "https://tocsin.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(r.Subject, "\r\n\u2028\u202e") || strings.Count(r.Subject, "[") != 1 {
		t.Errorf("subject %q", r.Subject)
	}
	if strings.Contains(r.HTML, "<script") || strings.Contains(r.HTML, "<b>") || strings.ContainsRune(r.HTML, '\u202e') {
		t.Errorf("markup got through:\n%s", r.HTML)
	}
	if strings.Contains(r.Text, "\nBcc:") {
		t.Errorf("a name began a line of the text:\n%s", r.Text)
	}
}

// A mail has exactly one link, to its own explanation; without a public URL it has none.
func TestOneLink(t *testing.T) {
	for name, m := range samples() {
		m = proto.CloneOf(m)
		m.MailId = "a/b?c d"
		with, err := Message(m, Options{PublicURL: "https://tocsin.example.org/x/"})
		if err != nil {
			t.Fatal(err)
		}
		const link = "https://tocsin.example.org/x/why/a%2Fb%3Fc%20d"
		if strings.Count(with.HTML, "href=") != 1 || strings.Count(with.HTML, link) != 1 || strings.Count(with.Text, "http") != 1 || !strings.Contains(with.Text, link) {
			t.Errorf("%s: links in\n%s\n%s", name, with.Text, with.HTML)
		}
		without, err := Message(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(without.HTML, "href=") || strings.Contains(without.Text, "http") {
			t.Errorf("%s: a link without a public URL", name)
		}
	}
}

// Times are in the recipient's zone on both sides of a clock change, and an
// unknown zone costs the mail nothing.
func TestZone(t *testing.T) {
	local := time.Local
	time.Local = time.FixedZone("HERE", 5*3600)
	t.Cleanup(func() { time.Local = local })
	for _, c := range []struct {
		zone string
		t    time.Time
		want string
	}{
		{"America/Chicago", noon, "Sun 1 Mar 2026, 06:00:00 CST"},
		{"Europe/Warsaw", time.Date(2020, 10, 25, 0, 30, 0, 0, time.UTC), "Sun 25 Oct 2020, 02:30:00 CEST"},
		{"Europe/Warsaw", time.Date(2020, 10, 25, 1, 30, 0, 0, time.UTC), "Sun 25 Oct 2020, 02:30:00 CET"},
		{"America/Sao_Paulo", noon, "Sun 1 Mar 2026, 09:00:00 UTC-03"},
		{"", noon, "Sun 1 Mar 2026, 12:00:00 UTC"},
		{"Local", noon, "Sun 1 Mar 2026, 12:00:00 UTC"},
		{"Mars/Olympus\r\nX", noon, "Sun 1 Mar 2026, 12:00:00 UTC"},
	} {
		n := offline()
		n.SinceTime = timestamppb.New(c.t)
		m := mail(0, one("Cam", "", n))
		m.Timezone = c.zone
		r, err := Message(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(r.Text, c.want) {
			t.Errorf("%q: want %q in\n%s", c.zone, c.want, r.Text)
		}
	}
}

// Lengths are written in at most two units, and never negative.
func TestLength(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 0: "0 s", 59999 * time.Millisecond: "59 s", time.Minute: "1 min", 320 * time.Second: "5 min 20 s",
		time.Hour: "1 h", 192 * time.Minute: "3 h 12 min", 52 * time.Hour: "2 d 4 h", 24*time.Hour + 59*time.Minute: "1 d",
	} {
		if got := length(d); got != want {
			t.Errorf("length(%v) = %q, want %q", d, got, want)
		}
	}
}

// An outage and its recovery differ in the subject only inside the brackets,
// and two cameras differ outside them.
func TestSubjectThreads(t *testing.T) {
	outside := func(name string) string {
		r, err := Message(samples()[name], Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(r.Subject, "] ")
		return rest
	}
	if a, b := outside("offline"), outside("online"); a != b || a != "Front door at Main street" {
		t.Errorf("offline %q, online %q", a, b)
	}
	if a, b := outside("offline"), outside("internet-offline"); a == b {
		t.Errorf("two devices share %q", a)
	}
}

// What no person should read is refused, saying why.
func TestRefused(t *testing.T) {
	for want, m := range map[string]*outboxv1.Mail{
		"no items":        mail(0),
		"not for people":  mail(0, one("Cam", "", &notificationv1.Notification{SinceTime: at(0)})),
		"since when":      mail(0, one("Cam", "", &notificationv1.Notification{Type: notificationv1.Notification_OFFLINE})),
		"item 1: notific": mail(0, &outboxv1.Mail_Item{}),
	} {
		if _, err := Message(m, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
