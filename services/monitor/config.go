package monitor

import (
	"fmt"
	"regexp"
	"time"

	"github.com/tocsin/tocsin/services/monitor/internal/device"
	"github.com/tocsin/tocsin/services/monitor/internal/partition"
)

// Holds are the waits before telling of a device that nobody has set up (rule
// H1). 0 is "at once".
type Holds struct {
	Offline         time.Duration `name:"offline" default:"300s" help:"How long a device must be offline before people are told, where its settings do not say."`
	InternetOffline time.Duration `name:"internet-offline" default:"300s" help:"The same for a device that is away from the internet."`
	Online          time.Duration `name:"online" default:"95s" help:"How long a device must be back before people are told."`
}

// Validate names the first setting that is wrong.
func (h Holds) Validate() error {
	for _, s := range []struct {
		name string
		d    time.Duration
	}{{"offline", h.Offline}, {"internet-offline", h.InternetOffline}, {"online", h.Online}} {
		if s.d < 0 || s.d > partition.MaxHold {
			return fmt.Errorf("hold.%s: %v is not between 0 and %v", s.name, s.d, partition.MaxHold)
		}
	}
	return nil
}

func (h Holds) rules() device.Rules {
	return device.Rules{Offline: h.Offline, InternetOffline: h.InternetOffline, Online: h.Online}
}

// Config are the monitor's settings.
type Config struct {
	Hold Holds `embed:"" prefix:"hold."`
	// DataCenter leaves the others' records alone; empty takes all.
	DataCenter string `name:"datacenter" env:"EEN_AGENT_DATACENTER" help:"Watch only the devices of this data centre (as their archivers stamp it); all if empty."`
	Members    int    `name:"monitor.members" default:"1" help:"Members of the consumer group in this process: more share its partitions among more processors."`
	Group      string `name:"monitor.group" default:"tocsin-monitor" help:"Consumer group; the data centre is added to it."`
	Instance   string `name:"monitor.instance" help:"Name of this process among the monitors: the same after a restart, and no other's. The host's name if empty."`
	// ExpectedRate says what is normal, for the metric beside the interrupts.
	ExpectedRate float64 `name:"monitor.expected-rate" default:"0.26" help:"Events that a device is expected to send a minute, for the metric that shows falling behind."`
}

var dataCenterName = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)

// Validate names the first setting that is wrong.
func (c Config) Validate() error {
	switch {
	case !dataCenterName.MatchString(c.DataCenter):
		return fmt.Errorf("datacenter: %q is not a name of letters, digits, . _ and -", c.DataCenter)
	case c.Members < 1 || c.Members > 64:
		return fmt.Errorf("monitor.members: %d is not between 1 and 64", c.Members)
	case c.Group == "":
		return fmt.Errorf("monitor.group: a name is needed")
	case c.ExpectedRate < 0:
		return fmt.Errorf("monitor.expected-rate: %v is less than 0", c.ExpectedRate)
	}
	return nil
}
