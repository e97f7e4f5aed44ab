package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"
)

// answers are a scripted archiver: one for each request, the last for the rest.
type answers struct {
	script []scripted
	// got are the requests: their bodies, and how long after the first.
	got   []string
	after []time.Duration
	urls  []string
	began time.Time
}

type scripted struct {
	status     int
	retryAfter string
	body       string
	err        error
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if a.began.IsZero() {
		a.began = time.Now()
	}
	a.got, a.after, a.urls = append(a.got, string(body)), append(a.after, time.Since(a.began)), append(a.urls, r.URL.String())
	s := a.script[min(len(a.got), len(a.script))-1]
	if s.err != nil {
		return nil, s.err
	}
	h := http.Header{}
	if s.retryAfter != "" {
		h.Set("Retry-After", s.retryAfter)
	}
	if s.body == "" {
		s.body = fmt.Sprintf(`{"accepted":%d,"duplicate":0,"rejected":[]}`, strings.Count(string(body), "\n"))
	}
	return &http.Response{StatusCode: s.status, Header: h, Body: io.NopCloser(strings.NewReader(s.body))}, nil
}

func emit(t *testing.T, a *answers, input string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var cmd emitCmd
	k, err := kong.New(&cmd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Parse(append(args, "-")); err != nil {
		t.Fatal(err)
	}
	var out, complaints strings.Builder
	err = cmd.run(context.Background(), &http.Client{Transport: a}, strings.NewReader(input), &out, &complaints)
	return out.String(), complaints.String(), err
}

func recorded(id, occur string) string {
	return fmt.Sprintf(`{"eventId":%q,"accountId":"a","deviceId":"d","occurTime":%q,"heartbeat":{}}`, id, occur)
}

// Proves that lines go in batches, without their append times, that the answer
// is told by line, and that a rejected line is a failure.
func TestEmit(t *testing.T) {
	a := &answers{script: []scripted{
		{status: 202, body: `{"accepted":1,"duplicate":0,"rejected":[{"index":1,"field":"deviceId","reason":"is missing"}]}`},
		{status: 202, body: `{"accepted":0,"duplicate":1,"rejected":[]}`},
	}}
	first, last := recorded("e1", "2026-03-01T12:00:00.000Z"), recorded("e3", "2026-03-01T12:00:02.000Z")
	input := strings.Replace(first, `"heartbeat"`, `"appendTime":"2026-03-01T12:00:00.100Z","heartbeat"`, 1) + "\n\n" + `{"accountId":"a"}` + "\n" + last + "\n"
	stdout, stderr, err := emit(t, a, input, "--batch=2", "--to=http://archiver:7101/")
	if !errors.Is(err, errRejected) {
		t.Errorf("error %v", err)
	}
	if stdout != "accepted 1, duplicate 1, rejected 1\n" || stderr != "standard input:3: deviceId: is missing\n" {
		t.Errorf("it says %q and %q", stdout, stderr)
	}
	if want := []string{first + "\n" + `{"accountId":"a"}` + "\n", last + "\n"}; !slices.Equal(a.got, want) {
		t.Errorf("it sent %q, want %q", a.got, want)
	}
	if a.urls[0] != "http://archiver:7101/v1/events" {
		t.Errorf("it sent to %s", a.urls[0])
	}
}

// Proves that emit waits as it is asked to while the archiver cannot take
// events, or does not answer, and gives up in the end.
func TestEmitTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{script: []scripted{
			{status: 503, retryAfter: "5", body: `{"error":"Kafka does not answer"}`},
			{err: errors.New("connection refused")},
			{status: 429, retryAfter: "2", body: `{"error":"busy"}`},
			{status: 202},
		}}
		stdout, _, err := emit(t, a, recorded("e1", "2026-03-01T12:00:00.000Z"))
		if err != nil || stdout != "accepted 1, duplicate 0, rejected 0\n" {
			t.Errorf("%q %v", stdout, err)
		}
		if want := []time.Duration{0, 5 * time.Second, 6 * time.Second, 8 * time.Second}; !slices.Equal(a.after, want) {
			t.Errorf("it tried after %v, want %v", a.after, want)
		}

		a = &answers{script: []scripted{{status: 503, retryAfter: "5", body: `{"error":"Kafka does not answer"}`}}}
		began := time.Now()
		_, _, err = emit(t, a, recorded("e1", "2026-03-01T12:00:00.000Z"), "--give-up=1m")
		if err == nil || !strings.Contains(err.Error(), "gave up") || time.Since(began) > time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// Proves that a request too large is sent in parts, and one line too large is
// told.
func TestEmitTooLarge(t *testing.T) {
	tooLarge := scripted{status: 413, body: `{"error":"the body is larger than the limit"}`}
	a := &answers{script: []scripted{tooLarge, {status: 202}, tooLarge}}
	stdout, stderr, err := emit(t, a, recorded("e1", "2026-03-01T12:00:00.000Z")+"\n"+recorded("e2", "2026-03-01T12:00:00.000Z"))
	if !errors.Is(err, errRejected) || stdout != "accepted 1, duplicate 0, rejected 1\n" || stderr != "standard input:2: the body is larger than the limit\n" {
		t.Errorf("%q %q %v", stdout, stderr, err)
	}
}

// Proves that --speed keeps the distances of the recording, divided, whatever
// the format says of times.
func TestEmitSpeed(t *testing.T) {
	for format, input := range map[string]string{
		"event": recorded("e1", "2026-03-01T12:00:00.000Z") + "\n" + recorded("e2", "2026-03-01T12:00:10.000Z") + "\n" +
			recorded("late", "2026-03-01T12:00:05.000Z") + "\n" + recorded("e3", "2026-03-01T12:00:30.000Z"),
		"een-poll": `{"data":{"d":{"status":1,"event":{"EMES":{"timestamp":"20260301120000.000"}}}}}` + "\n" +
			`{"data":{"d":{"event":{"EMES":{"timestamp":"20260301120000.000"},"EMEE":{"timestamp":"20260301120010.000"}}}}}` + "\n" +
			`{"data":{"d":{"status":1}}}` + "\n" + `{"data":{"d":{"event":{"EMES":{"timestamp":"20260301120030.000"}}}}}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &answers{script: []scripted{{status: 202}}}
			if _, _, err := emit(t, a, input, "--speed=10", "--format="+format, "--account=a"); err != nil {
				t.Error(err)
			}
			if want := []time.Duration{0, time.Second, 3 * time.Second}; !slices.Equal(a.after, want) {
				t.Errorf("%s: it sent after %v, want %v", format, a.after, want)
			}
		})
	}
}

// Proves that each hook of Motion is a request of its own, and that the feed's
// address has what the lines do not say.
func TestEmitMotion(t *testing.T) {
	a := &answers{script: []scripted{{status: 202, body: `{"accepted":1}`}}}
	stdout, _, err := emit(t, a, "event=start&span=1\nevent=end&span=1\n", "--format=motion", "--account=home", "--device=porch")
	if err != nil || stdout != "accepted 2, duplicate 0, rejected 0\n" {
		t.Errorf("%q %v", stdout, err)
	}
	if !slices.Equal(a.got, []string{"event=start&span=1", "event=end&span=1"}) || a.urls[0] != "http://127.0.0.1:7101/v1/feeds/motion?account=home&device=porch" {
		t.Errorf("it sent %q to %s", a.got, a.urls[0])
	}
}

// Proves that what no trying again can help ends the run with what the
// archiver says: no key, another path, a server that is no archiver.
func TestEmitFails(t *testing.T) {
	for want, s := range map[string]scripted{
		"an API key is needed": {status: 401, body: `{"error":"an API key is needed"}`},
		"404: <html>":          {status: 404, body: `<html>not here</html>`},
		"answer of":            {status: 202, body: `hello`},
		"gave up after 0s: the archiver says 502: oh": {status: 502, body: `oh`},
	} {
		_, _, err := emit(t, &answers{script: []scripted{s}}, recorded("e1", "2026-03-01T12:00:00.000Z"), "--give-up=0s")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	cmd := emitCmd{Files: []string{filepath.Join(t.TempDir(), "missing")}}
	if err := cmd.run(context.Background(), nil, nil, io.Discard, io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// Proves that a wrong use is refused by name.
func TestEmitValidate(t *testing.T) {
	for _, args := range [][]string{
		{"--to=archiver", "-"}, {"--to=ftp://a", "-"}, {"--format=een-poll", "-"}, {"--format=other", "-"}, {"--speed=-1", "-"}, {"--batch=0", "-"}, {},
	} {
		k, err := kong.New(&emitCmd{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Parse(args); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
