package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Options are what a test's suite has that is not the harness's default.
type Options struct {
	// Settings is YAML for `tocsin settings apply`; empty leaves all accounts unknown.
	Settings string
	// Args are further flags of a service, by its name.
	Args map[string][]string
	// Env is added to every service's environment.
	Env []string
	// Partitions of every topic; 0 is 4.
	Partitions int
}

// Suite is the four services as processes of their own, on a broker and a mail
// server of the test.
type Suite struct {
	Broker *Broker
	Sink   *Sink

	Archiver, Monitor, Gateway, Console *Process

	// Ingest and API are base URLs of the archiver and the console.
	Ingest, API string

	t testing.TB
}

// StartSuite starts the services and returns when all of them are ready. The
// settings are applied before monitor and gateway start: those read all there
// is before their first event, but what is written later, a moment later.
func StartSuite(t testing.TB, broker *Broker, o Options) *Suite {
	t.Helper()
	s := &Suite{Broker: broker, Sink: StartSink(t), t: t}
	CreateTopics(t, broker, o.Partitions)
	t.Cleanup(func() {
		if t.Failed() {
			s.logTopics()
		}
	})
	ingest, api := FreeAddress(t), FreeAddress(t)
	s.Ingest, s.API = "http://"+ingest, "http://"+api
	start := func(process **Process, name string, args ...string) {
		admin := FreeAddress(t)
		p := NewProcess(t, name, Binary(t, name), args...)
		p.Args = append(append(p.Args, broker.Flags()...), "--admin.listen", admin)
		p.Args = append(p.Args, o.Args[name]...)
		p.Env, p.Admin = o.Env, admin
		*process = p
		p.Start()
	}
	start(&s.Console, "console", "--console.listen", api)
	start(&s.Archiver, "archiver", "--ingest.listen", ingest)
	if o.Settings != "" {
		s.Console.Ready(time.Minute)
		ApplySettings(t, s.API, o.Settings)
	}
	start(&s.Monitor, "monitor", "--monitor.group", broker.Prefix+"monitor")
	start(&s.Gateway, "gateway", append(s.Sink.Flags(), "--public-url", s.API, "--gateway.group", broker.Prefix+"gateway")...)
	for _, p := range s.Processes() {
		p.Ready(time.Minute)
	}
	return s
}

// Processes are the four, upstream first.
func (s *Suite) Processes() []*Process {
	return []*Process{s.Archiver, s.Monitor, s.Gateway, s.Console}
}

// logTopics says what got how far, for a test that failed.
func (s *Suite) logTopics() {
	for _, topic := range []string{"etags", "notifications", "deliveries", "dead-letters"} {
		for _, rec := range s.Broker.Records(s.Broker.Topic(topic)) {
			s.t.Logf("---- %s/%d@%d %s %s %q (%d bytes)", topic, rec.Partition, rec.Offset,
				rec.Timestamp.Format("15:04:05.000"), Header(rec, "type"), rec.Key, len(rec.Value))
		}
	}
}

// Post sends events to the archiver, all in one request, and fails the test
// unless all are accepted.
func (s *Suite) Post(events ...Event) {
	s.t.Helper()
	Post(s.t, s.Ingest, events...)
}

// TryPost sends one event and is nil when it was accepted.
func (s *Suite) TryPost(event string) error {
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Post(s.Ingest+"/v1/events", "application/json", strings.NewReader(event))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(body))
	}
	return nil
}

// CreateTopics makes Tocsin's topics, as an operator does.
func CreateTopics(t testing.TB, broker *Broker, partitions int) {
	t.Helper()
	if partitions == 0 {
		partitions = 4
	}
	args := append([]string{"topics", "create", "--partitions", strconv.Itoa(partitions)}, broker.Flags()...)
	code, out := Run(t, time.Minute, "tocsin topics create", Binary(t, "tocsin"), args...)
	if code != 0 {
		t.Fatalf("tocsin topics create: exit code %d\n%s", code, out)
	}
}

// ApplySettings is `tocsin settings apply` with the YAML given. A broker that
// has only just started may need the second attempt that the command asks for.
func ApplySettings(t testing.TB, api, yaml string) {
	t.Helper()
	Eventually(t, time.Minute, "settings applied", func() error {
		code, out := TrySettings(t, api, yaml)
		if code == 0 {
			return nil
		}
		err := fmt.Errorf("exit code %d\n%s", code, out)
		if !strings.Contains(out, "try again") {
			t.Fatalf("tocsin settings apply: %v", err)
		}
		return err
	})
}

// TrySettings is ApplySettings for what may be refused.
func TrySettings(t testing.TB, api, yaml string) (code int, output string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return Run(t, 30*time.Second, "tocsin settings apply", Binary(t, "tocsin"), "settings", "apply", "-f", file, "--to", api)
}

// Event is one event as callers write it (contract: Ingest).
type Event struct {
	EventID   string     `json:"eventId,omitempty"`
	AccountID string     `json:"accountId"`
	DeviceID  string     `json:"deviceId"`
	OccurTime *time.Time `json:"occurTime,omitempty"`
	Status    *Status    `json:"status,omitempty"`
	Motion    *Motion    `json:"motion,omitempty"`
}

// Status is a sample of a device's state.
type Status struct {
	State string `json:"state,omitempty"`
}

// Motion is one step of a span of motion.
type Motion struct {
	Phase    string `json:"phase,omitempty"`
	SpanID   string `json:"spanId,omitempty"`
	RegionID string `json:"regionId,omitempty"`
}

// StatusAt is an event: the device was in that state at that time.
func StatusAt(account, device, state string, at time.Time) Event {
	return Event{AccountID: account, DeviceID: device, OccurTime: &at, Status: &Status{State: state}}
}

// MotionAt is an event: a phase of a span of motion in a region.
func MotionAt(account, device, phase, span, region string, at time.Time) Event {
	return Event{AccountID: account, DeviceID: device, OccurTime: &at, Motion: &Motion{Phase: phase, SpanID: span, RegionID: region}}
}

// Post sends events to the archiver at the base URL ingest.
func Post(t testing.TB, ingest string, events ...Event) {
	t.Helper()
	var lines bytes.Buffer
	for _, e := range events {
		if e.OccurTime != nil {
			at := e.OccurTime.UTC().Truncate(time.Millisecond)
			e.OccurTime = &at
		}
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(line, '\n'))
	}
	resp, err := http.Post(ingest+"/v1/events", "application/x-ndjson", &lines)
	if err != nil {
		t.Fatalf("post events: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("post events: %v", err)
	}
	var answer struct {
		Accepted, Duplicate int
		Rejected            []json.RawMessage
	}
	if resp.StatusCode != http.StatusAccepted {
		t.Fatalf("post events: %s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Accepted != len(events) {
		t.Fatalf("post %d events: %s (%v)", len(events), body, err)
	}
}
