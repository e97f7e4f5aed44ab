package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tocsin/tocsin/services/internal/codec"
)

// emitCmd is `tocsin emit`.
type emitCmd struct {
	To      string        `name:"to" default:"http://127.0.0.1:7101" help:"The archiver."`
	Format  string        `name:"format" enum:"event,een-poll,motion" default:"event" help:"What the lines are: event (ours), een-poll (messages of the poll stream), motion (hooks, such as event=start&span=1)."`
	Speed   float64       `name:"speed" default:"0" help:"How much faster than they were recorded: 1 keeps their distances, 0 is as fast as it goes."`
	Account string        `name:"account" help:"Whose devices they are, where the format does not say."`
	Device  string        `name:"device" help:"Which device it is, where the format does not say."`
	Bridge  []string      `name:"bridge" help:"Which devices are bridges (een-poll)."`
	Batch   int           `name:"batch" default:"500" help:"Most lines in a request."`
	GiveUp  time.Duration `name:"give-up" default:"5m" help:"How long to try again while the archiver cannot take events."`
	APIKey  string        `name:"api-key" secret:"" help:"Key for the archiver, where it asks for one."`
	Files   []string      `arg:"" name:"file" help:"Recorded events, one a line; - is standard input."`
}

// Help is shown by --help.
func (*emitCmd) Help() string {
	return "Sends recorded events to an archiver and says what became of them; rejected ones by file and line. The exit code is 0 only when every line was accepted, or had been before."
}

// Validate names the first setting that is wrong.
func (c *emitCmd) Validate() error {
	to, err := url.Parse(c.To)
	switch {
	case err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https":
		return fmt.Errorf("to: %q is no address such as http://127.0.0.1:7101", c.To)
	case c.Format != "event" && c.Account == "":
		return fmt.Errorf("account: --format %s does not say whose devices they are: add --account", c.Format)
	case c.Speed < 0:
		return fmt.Errorf("speed: %v is less than 0", c.Speed)
	case c.Batch < 1:
		return fmt.Errorf("batch: %d is less than 1", c.Batch)
	}
	return nil
}

// Run sends the files.
func (c *emitCmd) Run(ctx context.Context) error {
	return c.run(ctx, http.DefaultClient, os.Stdin, os.Stdout, os.Stderr)
}

// errRejected is the error of a run in which some line was not taken.
var errRejected = errors.New("not every line was accepted")

func (c *emitCmd) run(ctx context.Context, client *http.Client, stdin io.Reader, stdout, stderr io.Writer) error {
	e := &emitter{emitCmd: c, client: client, complain: stderr}
	e.address = e.endpoint()
	if c.Format == "motion" {
		// A hook is a request.
		e.Batch = 1
	}
	err := e.files(ctx, stdin)
	fmt.Fprintf(stdout, "accepted %d, duplicate %d, rejected %d\n", e.accepted, e.duplicate, e.rejected)
	switch {
	case err != nil:
		return fmt.Errorf("emit: %w", err)
	case e.rejected > 0:
		return fmt.Errorf("emit: %w", errRejected)
	}
	return nil
}

// emitter is one run of the command.
type emitter struct {
	*emitCmd
	client   *http.Client
	complain io.Writer
	address  string

	accepted, duplicate, rejected int
	// began is when the line recorded at first was sent (--speed).
	began, first time.Time
}

func (e *emitter) endpoint() string {
	to := strings.TrimSuffix(e.To, "/")
	if e.Format == "event" {
		return to + "/v1/events"
	}
	q := url.Values{"account": {e.Account}}
	if e.Device != "" {
		q.Set("device", e.Device)
	}
	if len(e.Bridge) > 0 {
		q["bridge"] = e.Bridge
	}
	return to + "/v1/feeds/" + e.Format + "?" + q.Encode()
}

func (e *emitter) files(ctx context.Context, stdin io.Reader) error {
	for _, name := range e.Files {
		if name == "-" {
			if err := e.file(ctx, "standard input", stdin); err != nil {
				return err
			}
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = e.file(ctx, name, f)
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// line is one event on its way.
type line struct {
	file   string
	number int
	text   []byte
}

// maxLine is more than an archiver takes.
const maxLine = 16 << 20

// file sends the lines of a file, in batches of what is due.
func (e *emitter) file(ctx context.Context, name string, r io.Reader) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	var batch []line
	size := 0
	flush := func() error {
		err := e.send(ctx, batch)
		batch, size = batch[:0], 0
		return err
	}
	for n := 1; in.Scan(); n++ {
		raw := bytes.TrimSpace(in.Bytes())
		if len(raw) == 0 {
			continue
		}
		text, at := e.read(raw)
		if wait := e.wait(at); wait > 0 {
			if err := flush(); err != nil {
				return err
			}
			if err := sleep(ctx, wait); err != nil {
				return err
			}
		}
		// Half of what an archiver takes in a request unless told otherwise.
		const most = 4 << 20
		if len(batch) >= e.Batch || size+len(text) > most {
			if err := flush(); err != nil {
				return err
			}
		}
		batch = append(batch, line{name, n, text})
		size += len(text) + 1
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return flush()
}

// timestamps are the times within a message of the poll stream.
var timestamps = regexp.MustCompile(`"timestamp":\s*"(\d{14}\.\d{3})"`)

// read is a line as it is sent, and when it was recorded; zero if it does not
// say. A line that is not readable goes as it is: the archiver says why.
func (e *emitter) read(raw []byte) (text []byte, at time.Time) {
	switch e.Format {
	case "event":
		ev, appended, err := codec.ParseRecorded(raw)
		if err != nil {
			return bytes.Clone(raw), time.Time{}
		}
		if ms, ok := codec.UnixMilli(ev.OccurTime); ok && appended.IsZero() {
			appended = time.UnixMilli(ms)
		}
		// Without the append time, which is the broker's to say.
		return codec.MarshalEventJSON(ev), appended
	case "een-poll":
		for _, m := range timestamps.FindAllSubmatch(raw, -1) {
			if t, err := time.Parse("20060102150405.000", string(m[1])); err == nil && t.After(at) {
				at = t
			}
		}
	case "motion":
		if hook, err := url.ParseQuery(string(raw)); err == nil {
			if s, err := strconv.ParseInt(hook.Get("time"), 10, 64); err == nil {
				at = time.Unix(s, 0)
			}
		}
	}
	return bytes.Clone(raw), at
}

// wait is how long a line recorded at that time is not yet due. Lines that do
// not say, and those older than the line before, are due with it.
func (e *emitter) wait(at time.Time) time.Duration {
	if e.Speed == 0 || at.IsZero() {
		return 0
	}
	if e.first.IsZero() {
		e.first, e.began = at, time.Now()
	}
	return time.Until(e.began.Add(time.Duration(float64(at.Sub(e.first)) / e.Speed)))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// emitAnswer is what an archiver says.
type emitAnswer struct {
	Accepted, Duplicate int
	Rejected            []struct {
		Index         int
		Field, Reason string
	}
	Error string
}

// send sends a batch and counts what became of it. It tries again for as long
// as the archiver says that it cannot take it now, or does not answer.
func (e *emitter) send(ctx context.Context, batch []line) error {
	if len(batch) == 0 {
		return nil
	}
	began, said := time.Now(), ""
	for {
		status, retryAfter, answer, err := e.post(ctx, batch)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && (status == http.StatusAccepted || status == http.StatusBadRequest || status == http.StatusForbidden && len(answer.Rejected) > 0):
			e.count(batch, answer)
			return nil
		case err == nil && status == http.StatusRequestEntityTooLarge && len(batch) > 1:
			half := len(batch) / 2
			if err := e.send(ctx, batch[:half]); err != nil {
				return err
			}
			return e.send(ctx, batch[half:])
		case err == nil && status == http.StatusRequestEntityTooLarge:
			e.reject(batch[0], answer.Error)
			return nil
		case err == nil && status != http.StatusTooManyRequests && status < 500:
			return fmt.Errorf("%s answers %d: %s", e.address, status, answer.Error)
		}
		problem := fmt.Sprintf("the archiver says %d: %s", status, answer.Error)
		if err != nil {
			problem = err.Error()
		}
		if time.Since(began)+retryAfter > e.GiveUp {
			return fmt.Errorf("gave up after %v: %s", time.Since(began).Round(time.Second), problem)
		}
		if problem != said {
			fmt.Fprintf(e.complain, "%s; trying again every %v\n", problem, retryAfter)
			said = problem
		}
		if err := sleep(ctx, retryAfter); err != nil {
			return err
		}
	}
}

// post makes one try. Without a word about it, the next is to be after 1 s.
func (e *emitter) post(ctx context.Context, batch []line) (status int, retryAfter time.Duration, answer emitAnswer, err error) {
	retryAfter = time.Second
	var body bytes.Buffer
	for _, l := range batch {
		body.Write(l.text)
		if e.Format != "motion" {
			body.WriteByte('\n')
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.address, &body)
	if err != nil {
		return 0, 0, answer, err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	if e.Format == "motion" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if e.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+e.APIKey)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, retryAfter, answer, err
	}
	defer resp.Body.Close()
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		retryAfter = time.Duration(s) * time.Second
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return 0, retryAfter, answer, err
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		// Not an archiver's answer: something in between, such as a proxy.
		answer.Error = strings.TrimSpace(string(text[:min(len(text), 200)]))
		if resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusBadRequest {
			return 0, retryAfter, answer, fmt.Errorf("the answer of %s is none of an archiver: %q", e.address, answer.Error)
		}
	}
	return resp.StatusCode, retryAfter, answer, nil
}

func (e *emitter) count(batch []line, a emitAnswer) {
	e.accepted += a.Accepted
	e.duplicate += a.Duplicate
	for _, r := range a.Rejected {
		what := r.Reason
		if r.Field != "" {
			what = r.Field + ": " + what
		}
		if r.Index >= 0 && r.Index < len(batch) {
			e.reject(batch[r.Index], what)
		}
	}
}

func (e *emitter) reject(l line, what string) {
	e.rejected++
	fmt.Fprintf(e.complain, "%s:%d: %s\n", l.file, l.number, what)
}
