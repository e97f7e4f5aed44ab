package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tocsin/tocsin/services/internal/config"
)

// parseReplay is the command line `tocsin replay args`.
func parseReplay(args ...string) (*replayCmd, error) {
	var settings struct {
		Replay replayCmd `cmd:""`
	}
	_, err := config.Program{Name: "tocsin", Settings: &settings}.Parse(append([]string{"replay"}, args...))
	return &settings.Replay, err
}

// TestReplay proves that files and standard input are replayed together, with
// the holds and the end that were asked for.
func TestReplay(t *testing.T) {
	line := func(id string) string {
		return `{"accountId":"acme","deviceId":"` + id + `","occurTime":"2026-03-01T12:00:00Z","status":{"state":"OFFLINE"}}` + "\n"
	}
	file := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(file, []byte(line("cam-2")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, err := parseReplay("--hold.offline=90m", "--until=2026-03-01T13:30:00Z", file, "-")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := cmd.run(strings.NewReader(line("cam-1")), &out); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	one, two := strings.Index(got, "cam-1"), strings.Index(got, "cam-2")
	if strings.Count(got, `{"at":"2026-03-01T13:30:00.000Z","accountId":"acme"`) != 2 || one < 0 || two < one {
		t.Errorf("output\n%s", got)
	}
	cmd.Until = "2026-03-01T13:29:59.999Z"
	out.Reset()
	if err := cmd.run(strings.NewReader(""), &out); err != nil || out.Len() != 0 {
		t.Errorf("before the deadline: %q, %v", out.String(), err)
	}
}

// TestReplayWithSettings proves that holds and regions are taken from a settings
// file, and that a bad one is refused with its place.
func TestReplayWithSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const events = `{"accountId":"acme","deviceId":"cam-1","occurTime":"2026-03-01T12:00:00Z","status":{"state":"OFFLINE"}}
{"accountId":"acme","deviceId":"cam-1","occurTime":"2026-03-01T12:00:01Z","motion":{"phase":"START","regionId":"yard"}}
{"accountId":"acme","deviceId":"cam-1","occurTime":"2026-03-01T12:00:01Z","motion":{"phase":"START","regionId":"door"}}
`
	write(`accounts:
  - id: acme
    name: Acme
    timezone: UTC
    active: true
    devices:
      - id: cam-1
        name: Door
        holds: {offline: 20s}
        regions: [{id: door, level: HIGH, enabled: true}, {id: yard, level: HIGH, enabled: false}]
`)
	cmd, err := parseReplay("--settings", file, "-")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := cmd.run(strings.NewReader(events), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, `"door"`) || !strings.Contains(got, `{"at":"2026-03-01T12:00:20.000Z"`) {
		t.Errorf("output\n%s", got)
	}
	write("accounts:\n  - idd: acme\n")
	if err := cmd.run(strings.NewReader(events), &out); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a typo in the settings: %v", err)
	}
}

// TestReplayRefuses proves that what cannot be done is said by its name.
func TestReplayRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"until":  {"--until=tomorrow", "f"},
		"mails":  {"--print=mails", "f"},
		"hold":   {"--hold.online=-1s", "f"},
		"<file>": {},
	} {
		if _, err := parseReplay(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	cmd, err := parseReplay(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.run(nil, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a file that is not there: %v", err)
	}
}
