package monitor

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var defaultHolds = Holds{Offline: 300 * time.Second, InternetOffline: 300 * time.Second, Online: 95 * time.Second}

// told is what the notifications of a fleet are compared by.
type told struct {
	At        string `json:"at"`
	AccountID string `json:"accountId"`
	DeviceID  string `json:"deviceId"`
	Type      string `json:"type"`
	Since     string `json:"since"`
}

func readTold(t *testing.T, text []byte) []told {
	t.Helper()
	var all []told
	dec := json.NewDecoder(bytes.NewReader(text))
	for dec.More() {
		var n told
		if err := dec.Decode(&n); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

func gunzip(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestFleet proves that a recorded fleet with every kind of trouble gives what
// an independent implementation of the rules says, and the same bytes again.
func TestFleet(t *testing.T) {
	events := gunzip(t, "testdata/fleet-1.ndjson.gz")
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		rec := Recording{Name: "fleet-1", Reader: bytes.NewReader(events)}
		if err := (Replay{Hold: defaultHolds}).Notifications(out, rec); err != nil {
			t.Fatal(err)
		}
	}
	want := readTold(t, gunzip(t, "testdata/fleet-1.notifications.ndjson.gz"))
	if diff := cmp.Diff(want, readTold(t, first.Bytes())); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the second replay wrote other bytes than the first")
	}
}
