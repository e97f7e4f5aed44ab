package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// eventLine is a line about cam-1 of acme. Times are seconds after noon; "" is
// none, and what is no number is written as it is.
func eventLine(occur, appended, body string) string {
	at := func(text string) string {
		var sec float64
		if n, err := fmt.Sscanf(text+" ", "%g ", &sec); n != 1 || err != nil {
			return text
		}
		return time.UnixMilli(1_772_366_400_000 + int64(sec*1000)).UTC().Format("2006-01-02T15:04:05.000Z")
	}
	line := `{"accountId":"acme","deviceId":"cam-1"`
	if occur != "" {
		line += `,"occurTime":"` + at(occur) + `"`
	}
	if appended != "" {
		line += `,"appendTime":"` + at(appended) + `"`
	}
	return line + "," + body + "}"
}

const (
	offline = `"status":{"state":"OFFLINE"}`
	online  = `"status":{"state":"ONLINE"}`
)

func replay(t *testing.T, r Replay, files ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	var recordings []Recording
	for i, text := range files {
		recordings = append(recordings, Recording{Name: fmt.Sprint("file ", i), Reader: iotest.OneByteReader(strings.NewReader(text))})
	}
	err := r.Notifications(&out, recordings...)
	return out.String(), err
}

// brief is one word a notification: what, and when after noon.
func brief(t *testing.T, out string) []string {
	t.Helper()
	var words []string
	for _, n := range readTold(t, []byte(out)) {
		at, err := time.Parse(time.RFC3339, n.At)
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, fmt.Sprintf("%s@%v", n.Type, float64(at.UnixMilli()-1_772_366_400_000)/1000))
	}
	return words
}

// TestLine pins a line of the output to the byte.
func TestLine(t *testing.T) {
	out, err := replay(t, Replay{Hold: defaultHolds},
		eventLine("0", "0", offline)+"\n"+eventLine("10.5", "11", `"motion":{"phase":"START","regionId":"door","spanId":"m1"}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"at":"2026-03-01T12:00:11.000Z","accountId":"acme","deviceId":"cam-1","type":"ALERT","since":"2026-03-01T12:00:10.500Z","notificationId":"nPWwIqx8PsWY234KapOIL6Q","outageId":"","regionId":"door","spanId":"m1"}
{"at":"2026-03-01T12:05:00.000Z","accountId":"acme","deviceId":"cam-1","type":"OFFLINE","since":"2026-03-01T12:00:00.000Z","notificationId":"nHV_6vX0ObeQy5ko40Ryz9A","outageId":"ozv81FNJcQZy3wIB7orCPZA","regionId":"","spanId":""}
`
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// TestClocks proves how the clock goes where lines name no append time
// (contract: CLI): by occur times, never back, and one wrong clock does not
// swallow the rest.
func TestClocks(t *testing.T) {
	const day = 86_400
	for _, c := range []struct {
		name string
		// occur and append times of the lines
		lines [][2]string
		want  []float64 // clocks, in seconds after noon
	}{
		{"occur times", [][2]string{{"0", ""}, {"5", ""}, {"7.5", ""}}, []float64{0, 5, 7.5}},
		{"never back", [][2]string{{"10", ""}, {"5", ""}, {"11", ""}}, []float64{10, 10, 11}},
		{"append times are believed", [][2]string{{"0", "1"}, {"5", "90000000"}, {"0", "3"}}, []float64{1, 90000000, 90000000}},
		{"no time at all", [][2]string{{"3", ""}, {"", ""}, {"1970-01-01T00:00:00Z", ""}}, []float64{3, 3, 3}},
		{"one clock a month ahead", [][2]string{{"0", ""}, {"2592000", ""}, {"10", ""}}, []float64{0, 0, 10}},
		{"a month ahead at the end", [][2]string{{"0", ""}, {"2592000", ""}}, []float64{0, 0}},
		{"a month passed", [][2]string{{"0", ""}, {"2592000", ""}, {"2592001", ""}}, []float64{0, 2592000, 2592001}},
		{"a day ahead is believed", [][2]string{{"0", ""}, {"86400", ""}, {"1", ""}}, []float64{0, day, day}},
		{"a ms more is not", [][2]string{{"0", ""}, {"86400.001", ""}, {"0", ""}}, []float64{0, 0, 0}},
		{"the next within a day, behind", [][2]string{{"0", ""}, {"90000", ""}, {"3600", ""}}, []float64{0, 90000, 90000}},
		{"the next within a day, ahead", [][2]string{{"0", ""}, {"90000", ""}, {"176400", ""}}, []float64{0, 90000, 176400}},
		{"two wrong clocks that differ", [][2]string{{"0", ""}, {"9999-12-31T23:59:59Z", ""}, {"2592000", ""}, {"4", ""}}, []float64{0, 0, 0, 4}},
		{"the first is wrong", [][2]string{{"2592000", ""}, {"5", ""}, {"6", ""}}, []float64{5, 5, 6}},
		{"the first is early", [][2]string{{"-2592000", ""}, {"5", ""}, {"6", ""}}, []float64{-2592000, 5, 6}},
		{"only one", [][2]string{{"5", ""}}, []float64{5}},
		{"the first has no time", [][2]string{{"", ""}, {"5", ""}, {"6", ""}}, []float64{-1_772_366_399.999, 5, 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var text strings.Builder
			for _, l := range c.lines {
				fmt.Fprintln(&text, eventLine(l[0], l[1], online))
			}
			var got []float64
			for l, err := range timed(parsed(strings.NewReader(text.String()))) {
				if err != nil || l.refused != nil {
					t.Fatal(err, l)
				}
				got = append(got, float64(l.clock-1_772_366_400_000)/1000)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("clocks (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUntil proves how far the clock runs on after the last line.
func TestUntil(t *testing.T) {
	hold := Holds{Offline: 2 * time.Hour}
	file := eventLine("0", "0", offline) + "\n" + eventLine("3700", "3700", `"heartbeat":{}`)
	for _, c := range []struct {
		until time.Time
		want  []string
	}{
		{time.Time{}, []string{"OFFLINE@7200"}}, // 3700 s and an hour
		{time.UnixMilli(1_772_366_400_000 + 7_199_999), nil},
		{time.UnixMilli(1_772_366_400_000 + 7_200_000), []string{"OFFLINE@7200"}},
		{time.UnixMilli(1_772_366_400_000), nil},
	} {
		out, err := replay(t, Replay{Hold: hold, Until: c.until}, file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, brief(t, out)); diff != "" {
			t.Errorf("until %v (-want +got):\n%s", c.until, diff)
		}
	}
}

// TestFilesArePartitions proves that each file has its own clock and devices,
// and that what they tell is merged in order.
func TestFilesArePartitions(t *testing.T) {
	a := eventLine("0", "", offline) + "\n" + eventLine("1000", "", online)
	b := eventLine("500", "", offline) + "\n"
	out, err := replay(t, Replay{Hold: defaultHolds}, a, b, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"OFFLINE@300", "OFFLINE@800", "ONLINE@1095"}, brief(t, out)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// TestSameMillisecond proves the order of what is due at once: account, device.
func TestSameMillisecond(t *testing.T) {
	var text strings.Builder
	for _, account := range []string{"b", "a-b", "a"} {
		for _, device := range []string{"2", "1"} {
			fmt.Fprintf(&text, `{"accountId":%q,"deviceId":%q,"occurTime":"2026-03-01T12:00:00Z","motion":{"phase":"START"}}`+"\n", account, device)
		}
	}
	out, err := replay(t, Replay{Hold: defaultHolds}, text.String())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range readTold(t, []byte(out)) {
		got = append(got, n.AccountID+"/"+n.DeviceID)
	}
	if diff := cmp.Diff([]string{"a/1", "a/2", "a-b/1", "a-b/2", "b/1", "b/2"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestRefusedLines proves that lines which are no events are named by number
// and reason, that blank ones are none, and that the rest is told.
func TestRefusedLines(t *testing.T) {
	file := eventLine("0", "0", offline) + "\n\n" + `{"deviceId":"x"}` + "\r\n" + eventLine("10", "10", online)[:40] + "\n" + eventLine("1772366400", "", "")
	out, err := replay(t, Replay{Hold: defaultHolds}, file)
	if diff := cmp.Diff([]string{"OFFLINE@300"}, brief(t, out)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Lines != 3 || len(refused.First) != 3 ||
		!strings.Contains(err.Error(), "file 0: 3 lines") || !strings.Contains(err.Error(), "line 3: accountId") || !strings.Contains(err.Error(), "line 4: ") {
		t.Errorf("error %v", err)
	}
}

// TestReadFails proves that a file that cannot be read to its end is an error,
// however much of it was told.
func TestReadFails(t *testing.T) {
	broken := errors.New("the disk is gone")
	var out bytes.Buffer
	err := Replay{Hold: defaultHolds}.Notifications(&out, Recording{Name: "f", Reader: iotest.ErrReader(broken)})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	err = Replay{Hold: defaultHolds}.Notifications(&out, Recording{Name: "f", Reader: bytes.NewReader(make([]byte, 4*lineMost))})
	if !errors.Is(err, errLongLine) {
		t.Errorf("a line without an end: %v", err)
	}
}

// TestBlocks proves that lines keep their order and numbers over blocks, and
// that a reader who stops early leaves nothing running.
func TestBlocks(t *testing.T) {
	var text strings.Builder
	const n = 20_000
	for i := range n {
		fmt.Fprintln(&text, eventLine(fmt.Sprint(i), "", online))
	}
	if text.Len() < 4*blockSize {
		t.Fatalf("only %d bytes", text.Len())
	}
	i := 0
	for l, err := range parsed(strings.NewReader(text.String())) {
		if err != nil {
			t.Fatal(err)
		}
		if i++; l.number != i || l.own() != 1_772_366_400_000+1000*int64(i-1) {
			t.Fatalf("line %d is number %d at %d", i, l.number, l.own())
		}
	}
	if i != n {
		t.Errorf("%d lines of %d", i, n)
	}
	// The bubble fails on a goroutine that is left.
	synctest.Test(t, func(*testing.T) {
		next, stop := iter.Pull2(parsed(strings.NewReader(text.String())))
		next()
		stop()
	})
}

// BenchmarkReplay is the replay of a fleet, a second time only parsing it.
func BenchmarkReplay(b *testing.B) {
	file := fleetFile(b)
	for _, c := range []struct {
		name string
		run  func() error
	}{
		{"parse", func() error {
			for _, err := range parsed(strings.NewReader(file)) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"replay", func() error {
			return Replay{Hold: defaultHolds}.Notifications(discard{}, Recording{Name: "fleet", Reader: strings.NewReader(file)})
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.run(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(strings.Count(file, "\n")*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func fleetFile(b *testing.B) string {
	b.Helper()
	return string(gunzip(b, "testdata/fleet-1.ndjson.gz"))
}
