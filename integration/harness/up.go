package harness

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"
)

// Up is `tocsin up`: everything in one process, on free ports.
type Up struct {
	*Process
	Ingest, API string
	// Data is the data directory.
	Data string

	admins []string
}

// NewUp prepares `tocsin up` on a new data directory with further flags.
func NewUp(t testing.TB, flags ...string) *Up {
	t.Helper()
	u := &Up{Data: t.TempDir()}
	ingest, api := FreeAddress(t), FreeAddress(t)
	u.Ingest, u.API = "http://"+ingest, "http://"+api
	args := []string{
		"up", "--data", u.Data, "--ingest.listen", ingest, "--console.listen", api,
		"--broker.listen", FreeAddress(t), "--sink.listen", FreeAddress(t), "--public-url", u.API,
	}
	for _, service := range []string{"archiver", "monitor", "gateway", "console"} {
		admin := FreeAddress(t)
		u.admins = append(u.admins, admin)
		args = append(args, "--admin."+service+".listen", admin)
	}
	u.Process = NewProcess(t, "tocsin up", Binary(t, "tocsin"), append(args, flags...)...)
	return u
}

// Ready waits until all four services are, and returns how long that took.
func (u *Up) Ready(within time.Duration) time.Duration {
	u.t.Helper()
	start := time.Now()
	for _, admin := range u.admins {
		u.Admin = admin
		u.Process.Ready(within - time.Since(start))
	}
	return time.Since(start)
}

var (
	mailLink    = regexp.MustCompile(`href="(/mail/[^"/]+)"`)
	mailSubject = regexp.MustCompile(`<h1[^>]*>([^<]*)</h1>`)
)

// Inbox are the subjects of the mails that the console's page shows, sorted.
func (u *Up) Inbox() ([]string, error) {
	page, err := fetch(u.API + "/")
	if err != nil {
		return nil, err
	}
	subjects := []string{}
	seen := make(map[string]bool)
	for _, link := range mailLink.FindAllStringSubmatch(page, -1) {
		if seen[link[1]] {
			continue
		}
		seen[link[1]] = true
		mail, err := fetch(u.API + link[1])
		if err != nil {
			return nil, err
		}
		subject := mailSubject.FindStringSubmatch(mail)
		if subject == nil {
			return nil, fmt.Errorf("the page of mail %s has no heading", link[1])
		}
		subjects = append(subjects, subject[1])
	}
	slices.Sort(subjects)
	return subjects, nil
}

// AwaitInbox waits until the page shows exactly these mails.
func (u *Up) AwaitInbox(within time.Duration, subjects ...string) {
	u.t.Helper()
	slices.Sort(subjects)
	Eventually(u.t, within, "the inbox", func() error {
		got, err := u.Inbox()
		if err == nil && !slices.Equal(got, subjects) {
			err = fmt.Errorf("it holds %q, want %q", got, subjects)
		}
		return err
	})
}

func fetch(url string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return string(body), err
}
