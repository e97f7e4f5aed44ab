package archiver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/tocsin/tocsin/services/internal/codec"
)

var update = flag.Bool("update", false, "write the recording and its golden file anew")

const (
	recordingFile = "testdata/een-poll.ndjson"
	goldenFile    = "testdata/een-poll.events.ndjson"
)

// heard is one line of a recorded poll stream, and when it was heard.
type heard struct {
	after time.Duration
	text  string
}

// Bits of the recording's statuses.
const (
	camera = 1441847 // on, registered, streaming
	bridge = 1179649 // on, registered; it never streams
)

// poll generates a recorded poll stream: a bridge and six cameras for six
// minutes from begin. Half of the cameras are watched by WebSocket, half by
// HTTP. Each status comes every 30 s, changed or not; there is motion, with
// codes doubled over frames and ids that are negative; one camera is off for a
// minute, by its codes; one stays off; the bridge's cameras lose the internet
// for two.
func poll(begin time.Time) []heard {
	const length = 6 * time.Minute
	random := rand.New(rand.NewPCG(2026, 3))
	var all []heard
	stamp := func(after time.Duration) string { return begin.Add(after).UTC().Format("20060102150405.000") }
	// say adds a message about one device, in the form that it is watched by.
	say := func(after time.Duration, device string, what map[string]any) {
		message := map[string]any{"status_code": 200, "message": "OK", "data": map[string]any{device: what}}
		if device[len(device)-1]%2 == 1 {
			message = map[string]any{"cameras": map[string]any{device: what}, "token": fmt.Sprintf("t%d", len(all))}
		}
		text, err := json.Marshal(message)
		if err != nil {
			panic(err)
		}
		// The stream is heard up to 200 ms after it happened.
		all = append(all, heard{after + time.Duration(random.IntN(200))*time.Millisecond, string(text)})
	}
	event := func(after time.Duration, device string, fields map[string]any) map[string]any {
		fields["timestamp"], fields["cameraid"] = stamp(after), device
		return fields
	}
	devices := []string{"100b0001", "100a0001", "100a0002", "100a0003", "100a0004", "100a0005", "100a0006"}
	// Whose bits change, when, to what; told by codes at once and by the status
	// at its next turn.
	type change struct {
		at         time.Duration
		set, clear int
		code       string
	}
	changes := map[string][]change{
		"100a0001": {{65 * time.Second, 0, 1 << 18, "CSDU"}, {125 * time.Second, 1 << 18, 0, "CSAU"}},
		"100a0002": {{200 * time.Second, 0, 1 << 18, "CSDU"}},
		"100a0003": {{150 * time.Second, 0, 1 << 20, "RCOF"}, {270 * time.Second, 1 << 20, 0, "RCON"}},
		"100a0004": {{150 * time.Second, 0, 1 << 20, "RCOF"}, {270 * time.Second, 1 << 20, 0, "RCON"}},
		"100b0001": {{150 * time.Second, 0, 1 << 20, "RCOF"}, {270 * time.Second, 1 << 20, 0, "RCON"}},
		"100a0005": {{90 * time.Second, 0, 1 << 17, "COFF"}, {180 * time.Second, 1 << 17, 0, "CONN"}},
	}
	for _, device := range devices {
		bits := camera
		if device == "100b0001" {
			bits = bridge
		}
		phase := time.Duration(random.IntN(30000)) * time.Millisecond
		todo := changes[device]
		for at := phase; at < length; at += 30 * time.Second {
			for len(todo) > 0 && todo[0].at <= at {
				bits = bits&^todo[0].clear | todo[0].set
				todo = todo[1:]
			}
			switch device {
			case "100a0004":
				say(at, device, map[string]any{"status_hex": fmt.Sprintf("%x", bits)})
			case "100a0006":
				say(at, device, map[string]any{"status64": int64(0x17)<<32 | int64(bits), "pre": stamp(at)})
			default:
				say(at, device, map[string]any{"status": bits, "pre": stamp(at)})
			}
		}
		for _, c := range changes[device] {
			say(c.at, device, map[string]any{"event": map[string]any{c.code: event(c.at, device, map[string]any{})}})
		}
	}
	for range 8 {
		device := devices[1+random.IntN(6)]
		at := time.Duration(random.IntN(int(length/time.Millisecond)-60000)) * time.Millisecond
		id, video, region := int32(random.Uint32()), int32(random.Uint32()), int32(random.Uint32())
		start, end, kind := "EMES", "EMEE", map[string]any{"eventid": id, "videoid": video}
		update := "EMEU"
		if random.IntN(3) == 0 {
			start, update, end = "ROMS", "ROMU", "ROME"
			kind["roiid"] = region
		}
		fields := func(after time.Duration) map[string]any {
			f := map[string]any{}
			for k, v := range kind {
				f[k] = v
			}
			return event(after, device, f)
		}
		say(at, device, map[string]any{"event": map[string]any{
			start:  fields(at),
			"VRES": event(at, device, map[string]any{"videoid": video, "format": "h264"}),
			"PRFR": event(at, device, map[string]any{"previewid": video}),
		}})
		last := at + time.Duration(3000+random.IntN(30000))*time.Millisecond
		for u := at + 10*time.Second; u < last; u += 10 * time.Second {
			say(u, device, map[string]any{"event": map[string]any{update: fields(u)}})
		}
		// The closing frame tells the start once more.
		say(last, device, map[string]any{"event": map[string]any{start: fields(at), end: fields(last)}})
	}
	slices.SortStableFunc(all, func(a, b heard) int { return cmp.Compare(a.after, b.after) })
	return all
}

// Proves on a recorded poll stream, both forms of it, what ETags come of it
// where the archiver alone speaks for the devices: no repeated status, no
// event twice, codes folded into the status (rules S2, L1). The file is the
// one that tocsin emit may send.
func TestPollRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := poll(time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC))
		var file bytes.Buffer
		for _, h := range stream {
			file.WriteString(h.text + "\n")
		}
		cfg := defaults(t)
		cfg.Affinity = true
		b := start(t, cfg)
		begin := time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)
		for _, h := range stream {
			time.Sleep(time.Until(begin.Add(h.after)))
			r := b.post("/v1/feeds/een-poll?account=00011557&bridge=100b0001", lines, h.text)
			if r.status != http.StatusAccepted || len(r.Rejected) > 0 {
				t.Fatalf("%s: %d %s", h.text, r.status, r.body)
			}
		}
		var events bytes.Buffer
		perCode := map[string]int{}
		for _, ev := range b.events() {
			perCode[ev.Code]++
			if strings.HasPrefix(ev.EventId, b.service.intake.run) {
				ev.EventId = ""
			}
			events.Write(append(codec.MarshalEventJSON(ev), '\n'))
		}
		t.Logf("%d messages, events by code: %v", len(stream), perCode)
		for name, got := range map[string][]byte{recordingFile: file.Bytes(), goldenFile: events.Bytes()} {
			if *update {
				if err := os.WriteFile(name, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := gocmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s: -want +got\n%s", name, diff)
			}
		}
	})
}
