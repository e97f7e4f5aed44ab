package partition

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
	"github.com/tocsin/tocsin/services/monitor/internal/device"
)

// MaxHold is the longest hold that a setting may ask for.
const MaxHold = 30 * 24 * time.Hour

// settings are what the machine needs to know of a device's. Most devices
// share them with many others, so each set is kept once.
type settings struct {
	rules  device.Rules
	bridge bool
	// disabled are the regions that make no alerts (rule M1), sorted, each
	// followed by a slash, which no id contains.
	disabled string
}

func readSettings(s *settingsv1.DeviceSettings, defaults device.Rules) (settings, error) {
	out := settings{rules: defaults, bridge: s.Kind == settingsv1.Device_BRIDGE}
	for _, h := range []struct {
		name string
		in   *durationpb.Duration
		to   *time.Duration
	}{
		{"offline", s.GetHolds().GetOffline(), &out.rules.Offline},
		{"internet offline", s.GetHolds().GetInternetOffline(), &out.rules.InternetOffline},
		{"online", s.GetHolds().GetOnline(), &out.rules.Online},
	} {
		if h.in == nil {
			continue
		}
		d := h.in.AsDuration()
		if !h.in.IsValid() || d < 0 || d > MaxHold {
			return settings{}, fmt.Errorf("hold %s: %v is not between 0 and %v", h.name, d, MaxHold)
		}
		*h.to = d
	}
	regions := slices.Clone(s.DisabledRegions)
	slices.Sort(regions)
	for _, r := range slices.Compact(regions) {
		out.disabled += r + "/"
	}
	return out, nil
}

func (s *settings) disables(region string) bool {
	if s.disabled == "" {
		return false
	}
	for r := range strings.SplitSeq(strings.TrimSuffix(s.disabled, "/"), "/") {
		if r == region {
			return true
		}
	}
	return false
}

// settingSets numbers the different settings; 0 is the defaults.
type settingSets struct {
	numbers map[settings]uint32
	sets    []settings
	used    []int // devices, by number
	free    []uint32
}

func newSettingSets(defaults device.Rules) settingSets {
	return settingSets{numbers: map[settings]uint32{}, sets: []settings{{rules: defaults}}, used: []int{0}}
}

// use is the number of s for one more device. It is never 0: a device that has
// been set up is told from one that has not, whatever its settings say.
func (t *settingSets) use(s settings) uint32 {
	n, ok := t.numbers[s]
	if !ok {
		if last := len(t.free) - 1; last >= 0 {
			n = t.free[last]
			t.free = t.free[:last]
			t.sets[n] = s
		} else {
			n = uint32(len(t.sets))
			t.sets = append(t.sets, s)
			t.used = append(t.used, 0)
		}
		t.numbers[s] = n
	}
	t.used[n]++
	return n
}

// release says that one device less has the settings n.
func (t *settingSets) release(n uint32) {
	if n == 0 {
		return
	}
	if t.used[n]--; t.used[n] == 0 {
		delete(t.numbers, t.sets[n])
		t.free = append(t.free, n)
	}
}
