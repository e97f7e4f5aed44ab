package feeds

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tocsin/tocsin/services/internal/codec"
)

var update = flag.Bool("update", false, "write the golden files and the recording anew")

// received is when the messages of these tests come in.
var received = time.UnixMilli(1_772_366_460_000) // 2026-03-01T12:01:00Z

// printed writes items as golden files have them, one a line: the index, the
// event, and what it folds into the last status known.
func printed(items []Item) string {
	var out strings.Builder
	for _, item := range items {
		fmt.Fprintf(&out, "%d ", item.Index)
		if item.Err != nil {
			fmt.Fprintf(&out, "rejected %q %s\n", item.Err.Field, item.Err.Reason)
			continue
		}
		out.Write(codec.MarshalEventJSON(item.Event))
		if item.Fold != (Fold{}) {
			fmt.Fprintf(&out, " fold set=%#x clear=%#x alone=%v", item.Fold.Set, item.Fold.Clear, item.Fold.Alone)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// parse reads a message and prints what is in it, or why it is refused.
func parse(s Source, m Message) string {
	if m.Received.IsZero() {
		m.Received = received
	}
	items, err := s.Parse(m)
	if err != nil {
		var field *codec.FieldError
		if !errors.As(err, &field) {
			return fmt.Sprintf("error of type %T: %v", err, err)
		}
		return fmt.Sprintf("refused %q %s\n", field.Field, field.Reason)
	}
	return printed(items)
}

func query(text string) url.Values {
	q, err := url.ParseQuery(text)
	if err != nil {
		panic(err)
	}
	return q
}

// Proves that our own form is read in each of its wrappings, item by item, and
// that only a broken wrapping refuses the whole.
func TestEvents(t *testing.T) {
	const good, other = `{"eventId":"e1","accountId":"a","deviceId":"d","heartbeat":{}}`, `{"accountId":"a","deviceId":"d2","code":"X"}`
	for name, tc := range map[string]struct{ mediaType, body, want string }{
		"lines":             {ndjson, good + "\n\r\n" + `{"accountId":"a"}` + "\nnonsense\n" + other, "0 " + good + "\n" + `1 rejected "deviceId" is missing` + "\n" + `2 rejected "" an event is a JSON object, this is null` + "\n3 " + other + "\n"},
		"an array":          {jsonText, "[" + good + ",\n" + other + "]", "0 " + good + "\n1 " + other + "\n"},
		"one object":        {jsonText, "\xef\xbb\xbf " + good + "\n", "0 " + good + "\n"},
		"an empty array":    {jsonText, "[]", `refused "" there is no event in it` + "\n"},
		"nothing":           {jsonText, " ", `refused "" there is no event in it` + "\n"},
		"no lines":          {ndjson, "\n\n", `refused "" there is no event in it` + "\n"},
		"a cut array":       {jsonText, "[" + good + ",", `refused "" not readable: the JSON ends too early` + "\n"},
		"two objects":       {jsonText, good + good, `refused "" there is more after the JSON value: send one a line as application/x-ndjson` + "\n"},
		"an array of other": {jsonText, `[7]`, `0 rejected "" an event is a JSON object, this is a number` + "\n"},
		"CloudEvent": {cloudEvent, `{"specversion":"1.0","id":"c1","source":"/x","type":"t","subject":"a/d","time":"2026-03-01T12:00:00Z","ext":1,"data":{"status":{"state":"OFFLINE"}}}`,
			`0 {"eventId":"c1","accountId":"a","deviceId":"d","occurTime":"2026-03-01T12:00:00.000Z","status":{"state":"OFFLINE"}}` + "\n"},
		"CloudEvent whose data says all": {cloudEvent, `{"specversion":"1.0","id":"c 1","source":"/x","type":"t","subject":"x","time":"2026-03-01T12:00:00Z","data":` + good + `}`,
			`0 {"eventId":"e1","accountId":"a","deviceId":"d","occurTime":"2026-03-01T12:00:00.000Z","heartbeat":{}}` + "\n"},
		"CloudEvents": {cloudEvents, `[{"specversion":"1.0","id":"c 1","source":"/x","type":"t","subject":"a/d","data_base64":"eyJjb2RlIjoiWCJ9"},{"specversion":"0.3"},{"specversion":"1.0","id":"2","source":"/x","type":"t"},{"specversion":"1.0","id":"2","source":"/x","type":"t","data":[]}]`,
			`0 {"eventId":"ce-33a872e787a8a554f5bcb83df3628f82","accountId":"a","deviceId":"d","code":"X"}` + "\n" +
				`1 rejected "specversion" "0.3" is not known: 1.0 is` + "\n" +
				`2 rejected "data" is missing: it is an event as POST /v1/events takes it` + "\n" +
				`3 rejected "data" is no JSON object` + "\n"},
	} {
		if diff := cmp.Diff(tc.want, parse(Events, Message{MediaType: tc.mediaType, Body: []byte(tc.body)})); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// Proves each hook of the Motion daemon, its times (rule T2), and that a wrong
// request is refused naming the parameter.
func TestMotion(t *testing.T) {
	for name, tc := range map[string]struct{ query, form, want string }{
		"start":           {"account=home&device=porch&event=start&span=1-20260301120059&time=1772366459", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:00:59.999Z","code":"start","motion":{"phase":"START","spanId":"1-20260301120059"}}`},
		"a form":          {"account=home", "device=porch&event=motion&span=1&time=1772366460&account=other", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:01:00.000Z","code":"motion","motion":{"phase":"UPDATE","spanId":"1"}}`},
		"Motion's name":   {"account=home&device=porch&event=on_event_end&span=1&time=2026-03-01T12:00:59.5Z", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:00:59.500Z","code":"on_event_end","motion":{"phase":"END","spanId":"1"}}`},
		"region":          {"account=home&device=porch&event=start&region=door&time=1772366459123", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:00:59.123Z","code":"start","motion":{"phase":"START","regionId":"door"}}`},
		"picture":         {"account=home&device=porch&event=picture&time=1772366459", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:00:59.999Z","code":"picture"}`},
		"lost":            {"account=home&device=porch&event=lost&time=1772366461", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:01:01.000Z","code":"lost","status":{"state":"OFFLINE"}}`},
		"found":           {"account=home&device=porch&event=found&time=1772366459", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:00:59.999Z","code":"found","status":{"state":"ONLINE"}}`},
		"a minute off":    {"account=home&device=porch&event=found&time=1772366400000", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:00:00.000Z","code":"found","status":{"state":"ONLINE"}}`},
		"more off":        {"account=home&device=porch&event=found&time=1772366399999", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:01:00.000Z","timeCorrected":true,"code":"found","status":{"state":"ONLINE"}}`},
		"ahead":           {"account=home&device=porch&event=found&time=1772366521000", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:01:00.000Z","timeCorrected":true,"code":"found","status":{"state":"ONLINE"}}`},
		"unreadable time": {"account=home&device=porch&event=found&time=noon", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:01:00.000Z","timeCorrected":true,"code":"found","status":{"state":"ONLINE"}}`},
		"absurd time":     {"account=home&device=porch&event=found&time=9223372036854775807", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:01:00.000Z","timeCorrected":true,"code":"found","status":{"state":"ONLINE"}}`},
		"no time":         {"account=home&device=porch&event=found", "", `0 {"accountId":"home","deviceId":"porch","occurTime":"2026-03-01T12:01:00.000Z","timeCorrected":true,"code":"found","status":{"state":"ONLINE"}}`},
		"a wrong span":    {"account=home&device=porch&event=start&span=a/b", "", `0 rejected "motion.spanId" "a/b" is no id: 1 to 64 of A-Z a-z 0-9 . _ : - are allowed`},
		"no account":      {"device=porch&event=start", "", `refused "account" is missing: add ?account=… to the address`},
		"a wrong account": {"account=a b&device=porch&event=start", "", `refused "account" "a b" is no id: 1 to 64 of A-Z a-z 0-9 . _ : - are allowed`},
		"no device":       {"account=home&event=start", "", `refused "device" is missing: add ?device=… to the address`},
		"no event":        {"account=home&device=porch", "", `refused "event" "" is not known: start, motion, end, picture, lost or found`},
		"a wrong form":    {"account=home&device=porch", "event=%zz", `refused "" not readable as a form: invalid URL escape "%zz"`},
	} {
		m := Message{Query: query(tc.query), Body: []byte(tc.form)}
		if tc.form != "" {
			m.MediaType = form
		}
		if diff := cmp.Diff(tc.want+"\n", parse(motionDaemon, m)); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// Proves that a camera lost and found within one second, as Motion tells it in
// whole seconds, stays in that order.
func TestMotionWithinASecond(t *testing.T) {
	at := func(event string, after time.Duration) time.Time {
		items, err := motionDaemon.Parse(Message{
			Query:    query("account=home&device=porch&time=1772366460&event=" + event),
			Received: received.Add(after),
		})
		if err != nil {
			t.Fatal(err)
		}
		return items[0].Event.OccurTime.AsTime()
	}
	found, lost, foundLate := at("found", 100*time.Millisecond), at("lost", 900*time.Millisecond), at("found", 3*time.Second)
	if !found.Before(lost) || !lost.Before(foundLate) {
		t.Errorf("found at %v, lost at %v, found again at %v", found, lost, foundLate)
	}
}

// Proves the reading of poll messages of both forms: several codes in a frame,
// negative ids, the four forms of a status, codes and devices that are not
// readable, and messages that are none.
func TestEENPoll(t *testing.T) {
	const file = "testdata/een-poll.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	// Each message, a line that begins with {, is followed by what it gives.
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			out.WriteString(line)
			continue
		}
		if !strings.HasPrefix(line, "    ") {
			out.WriteString(line)
			got := parse(eenPoll, Message{MediaType: ndjson, Query: query("account=00011557&bridge=100b0001,100b0002"), Body: []byte(line)})
			for l := range strings.Lines(got) {
				out.WriteString("    " + l)
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), out.String()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Proves that the poll stream needs an account, and takes JSON as it comes.
func TestEENPollMessage(t *testing.T) {
	const message = `{"cameras":{"100a9af6":{"status":1441847}}}`
	const event = `{"accountId":"a","deviceId":"100a9af6","occurTime":"2026-03-01T12:01:00.000Z","timeCorrected":true,"status":{"bits":1441847}}`
	for name, tc := range map[string]struct{ query, mediaType, body, want string }{
		"one":        {"account=a", jsonText, message, "0 " + event + "\n"},
		"an array":   {"account=a", jsonText, "[" + message + "," + message + "]", "0 " + event + "\n1 " + event + "\n"},
		"lines":      {"account=a", ndjson, message + "\n\n" + message, "0 " + event + "\n1 " + event + "\n"},
		"nothing":    {"account=a", ndjson, "\n", `refused "" there is no message in it` + "\n"},
		"no account": {"", ndjson, message, `refused "account" is missing: add ?account=… to the address` + "\n"},
	} {
		if diff := cmp.Diff(tc.want, parse(eenPoll, Message{MediaType: tc.mediaType, Query: query(tc.query), Body: []byte(tc.body)})); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// Proves on any bytes, for each source, that reading never panics and that
// every item is a valid event or says what is wrong with it.
func FuzzParse(f *testing.F) {
	all := []Source{Events, eenPoll, motionDaemon}
	text, err := os.ReadFile("testdata/een-poll.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "{") {
			f.Add(uint8(1), ndjson, "account=a", []byte(line))
		}
	}
	f.Add(uint8(0), ndjson, "", []byte(`{"accountId":"a","deviceId":"d","heartbeat":{}}`))
	f.Add(uint8(0), cloudEvents, "", []byte(`[{"specversion":"1.0","id":"c 1","source":"/x","type":"t","subject":"a/d","data_base64":"eyJjb2RlIjoiWCJ9"}]`))
	f.Add(uint8(2), form, "account=a&device=d", []byte("event=start&time=1772366460"))
	f.Fuzz(func(t *testing.T, which uint8, mediaType, q string, body []byte) {
		values, err := url.ParseQuery(q)
		if err != nil {
			return
		}
		items, err := all[int(which)%len(all)].Parse(Message{MediaType: mediaType, Query: values, Body: body, Received: received})
		if err != nil {
			var field *codec.FieldError
			if !errors.As(err, &field) {
				t.Fatalf("error of type %T: %v", err, err)
			}
			return
		}
		for _, item := range items {
			if (item.Event == nil) == (item.Err == nil) {
				t.Fatalf("item %+v", item)
			}
			if item.Event == nil {
				continue
			}
			if err := codec.ValidateEvent(item.Event); err != nil {
				t.Fatal(err)
			}
			value, err := codec.EncodeEvent(item.Event)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := codec.DecodeEvent(value); err != nil {
				t.Fatal(err)
			}
		}
	})
}
