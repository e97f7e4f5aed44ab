package settings

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	settingsv1 "github.com/tocsin/tocsin/proto/gen/tocsin/settings/v1"
)

// resolveAll is what the monitor needs of each device that an account has set
// up, by device id: each hold from the device, else its site, else the account
// (rule H1; a hold that nobody sets is the service's), regions that are
// switched off, kind, silence, and whether the account is active.
func resolveAll(account string, o objects) []*settingsv1.DeviceSettings {
	a := o.account(account)
	var out []*settingsv1.DeviceSettings
	for _, k := range slices.SortedFunc(maps.Keys(o), compareKeys) {
		d := o[k].GetDevice()
		if d == nil {
			continue
		}
		r := &settingsv1.DeviceSettings{
			AccountId: account, DeviceId: d.GetDeviceId(), Active: a.GetActive(), Kind: d.GetKind(), SilentAfter: d.GetSilentAfter(),
			Holds: inherit(d.GetHolds(), o.site(account, d.GetSite()).GetHolds(), a.GetHolds()),
		}
		for _, g := range d.GetRegions() {
			if !g.GetEnabled() {
				r.DisabledRegions = append(r.DisabledRegions, g.GetRegionId())
			}
		}
		slices.Sort(r.DisabledRegions)
		out = append(out, r)
	}
	return out
}

// inherit takes each hold from the first that sets it; nil when none does.
func inherit(from ...*settingsv1.Holds) *settingsv1.Holds {
	first := func(get func(*settingsv1.Holds) *durationpb.Duration) *durationpb.Duration {
		for _, h := range from {
			if d := get(h); d != nil {
				return d
			}
		}
		return nil
	}
	h := &settingsv1.Holds{
		Offline:         first((*settingsv1.Holds).GetOffline),
		InternetOffline: first((*settingsv1.Holds).GetInternetOffline),
		Online:          first((*settingsv1.Holds).GetOnline),
	}
	if h.Offline == nil && h.InternetOffline == nil && h.Online == nil {
		return nil
	}
	return h
}
