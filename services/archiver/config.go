package archiver

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tocsin/tocsin/services/internal/codec"
	"github.com/tocsin/tocsin/services/internal/config"
)

// Config is what an archiver can be told.
type Config struct {
	ID     string `name:"archiver.id" placeholder:"ID" help:"Name of this archiver, in record headers and as a device of the account operator (default: archiver-HOST)."`
	Beacon bool   `name:"archiver.beacon" default:"true" negatable:"" help:"Send a heartbeat of this archiver every 10 s, so that its death is noticed."`
	// DataCenter is stamped on every record. It is no flag here, because the
	// monitor has the same one: whoever makes the process sets it.
	DataCenter string `kong:"-"`

	Listen      config.Address `name:"ingest.listen" default:"127.0.0.1:7101" placeholder:"HOST:PORT" help:"Where events are taken. An address that others can reach needs --ingest.api-keys-file."`
	APIKeysFile string         `name:"ingest.api-keys-file" placeholder:"FILE" help:"Who may send, one key a line: its SHA-256 in hex, its accounts with commas or * for all, a remark. Without it nobody is asked."`
	Affinity    bool           `name:"ingest.affinity" help:"This archiver alone speaks for the devices it hears of: a status equal to the last is not sent again."`
	Mode        string         `name:"ingest.mode" default:"change" enum:"change,heartbeat" help:"change: each known status again every --ingest.refresh. heartbeat: again every 30 s and nothing held back, as the old system did, for comparison."`
	Refresh     time.Duration  `name:"ingest.refresh" default:"30m" help:"Each known status is sent again so often, spread out."`
	AckTimeout  time.Duration  `name:"ingest.ack-timeout" default:"10s" help:"A caller is told 503 when Kafka has not acknowledged by then."`

	MaxBodyBytes    int64 `name:"ingest.max-body-bytes" default:"8388608" help:"Larger request bodies are refused (413)."`
	MaxEvents       int   `name:"ingest.max-events" default:"20000" help:"More events in a request are refused (413)."`
	MaxRequests     int   `name:"ingest.max-requests" default:"256" help:"More requests at once are refused (429)."`
	MaxBuffered     int   `name:"ingest.max-buffered" default:"100000" help:"More events that wait for Kafka are refused (429)."`
	KnownDevices    int   `name:"ingest.known-devices" default:"1000000" help:"Devices whose last status is remembered, about 250 bytes each; beyond it, those not heard of for longest are forgotten and their next status passes as the first."`
	DuplicateWindow int   `name:"ingest.duplicate-window" default:"200000" help:"Event ids that are remembered, so that a repeated request has one effect; about 60 bytes each."`
}

// Modes of sending what is known again.
const (
	modeChange    = "change"
	modeHeartbeat = "heartbeat"
)

// heartbeatEvery is how often the old system repeated each status.
const heartbeatEvery = 30 * time.Second

// Validate names the first setting that is wrong, and the way out.
func (c Config) Validate() error {
	if c.ID != "" && !codec.ValidID(c.ID) {
		return fmt.Errorf("archiver.id: %q is no id: 1 to %d of A-Z a-z 0-9 . _ : - are allowed", c.ID, codec.MaxID)
	}
	if c.DataCenter != "" && !codec.ValidID(c.DataCenter) {
		return fmt.Errorf("datacenter: %q is no id such as c001", c.DataCenter)
	}
	if !c.Listen.Loopback() && c.APIKeysFile == "" {
		return fmt.Errorf("ingest.listen: %s can be reached from other machines, and anyone there could send events: say with --ingest.api-keys-file who may, or listen on 127.0.0.1", c.Listen)
	}
	if c.Mode != modeChange && c.Mode != modeHeartbeat {
		return fmt.Errorf("ingest.mode: %q is not known: change or heartbeat", c.Mode)
	}
	if c.Refresh < time.Minute {
		return fmt.Errorf("ingest.refresh: %v is too often, at least 1m is possible; --ingest.mode heartbeat repeats every 30s", c.Refresh)
	}
	if c.AckTimeout < 100*time.Millisecond || c.AckTimeout > 2*time.Minute {
		return fmt.Errorf("ingest.ack-timeout: %v is not from 100ms to 2m", c.AckTimeout)
	}
	for _, n := range []struct {
		name  string
		value int64
		least int64
	}{
		{"max-body-bytes", c.MaxBodyBytes, 1024}, {"max-events", int64(c.MaxEvents), 1}, {"max-requests", int64(c.MaxRequests), 1},
		{"max-buffered", int64(c.MaxBuffered), 1}, {"known-devices", int64(c.KnownDevices), 1}, {"duplicate-window", int64(c.DuplicateWindow), 0},
	} {
		if n.value < n.least {
			return fmt.Errorf("ingest.%s: %d is too small, at least %d is needed", n.name, n.value, n.least)
		}
	}
	if c.MaxBuffered < c.MaxEvents {
		return fmt.Errorf("ingest.max-buffered: %d is less than ingest.max-events: a request of %d events could never be taken", c.MaxBuffered, c.MaxEvents)
	}
	return nil
}

// id is the archiver's name; the default is made of the host's.
func (c Config) id() string {
	if c.ID != "" {
		return c.ID
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	name := "archiver-" + strings.Map(func(r rune) rune {
		if r < 128 && codec.ValidID(string(r)) {
			return r
		}
		return '-'
	}, host)
	return name[:min(len(name), codec.MaxID)]
}
