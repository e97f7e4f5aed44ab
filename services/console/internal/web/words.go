package web

import (
	"fmt"
	"strings"
	"time"

	deliveryv1 "github.com/tocsin/tocsin/proto/gen/tocsin/delivery/v1"
	notificationv1 "github.com/tocsin/tocsin/proto/gen/tocsin/notification/v1"
	statev1 "github.com/tocsin/tocsin/proto/gen/tocsin/state/v1"
	"github.com/tocsin/tocsin/services/console/internal/readmodel"
)

// stateWord is a state as people say it.
func stateWord(s readmodel.State) string {
	switch s {
	case statev1.DeviceState_ONLINE:
		return "Online"
	case statev1.DeviceState_OFFLINE:
		return "Offline"
	case statev1.DeviceState_INTERNET_OFFLINE:
		return "Internet offline"
	}
	return "Unknown"
}

// tone is the colour and shape of a state.
func tone(s readmodel.State) string {
	switch s {
	case statev1.DeviceState_ONLINE:
		return "ok"
	case statev1.DeviceState_OFFLINE:
		return "out"
	case statev1.DeviceState_INTERNET_OFFLINE:
		return "net"
	}
	return "none"
}

// span is a length of time as people say it: seconds as long as they are few.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	s := int64(d / time.Second)
	switch {
	case d < 0:
		return "0 s"
	case s <= 600:
		return fmt.Sprintf("%d s", s)
	case s < 2*3600:
		return fmt.Sprintf("%d min", (s+30)/60)
	case s < 48*3600 && s%3600 < 60:
		return fmt.Sprintf("%d h", s/3600)
	case s < 48*3600:
		return fmt.Sprintf("%d h %d min", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%d days", (s+43200)/86400)
}

// headline says in a few words what a notification is about.
func headline(n *readmodel.Notice, device string) string {
	held, withdrawn := n.Stage == notificationv1.Notification_PENDING, n.Stage == notificationv1.Notification_WITHDRAWN
	switch n.Type {
	case notificationv1.Notification_ALERT:
		return "Motion at " + device
	case notificationv1.Notification_OFFLINE:
		switch {
		case held:
			return device + " seems offline"
		case withdrawn:
			return device + " was offline for a moment"
		}
		return device + " went offline"
	case notificationv1.Notification_INTERNET_OFFLINE:
		switch {
		case held:
			return device + " seems cut off from the internet"
		case withdrawn:
			return device + " was cut off for a moment"
		}
		return device + " is cut off from the internet"
	case notificationv1.Notification_ONLINE:
		switch {
		case held:
			return device + " seems to be back"
		case withdrawn:
			return device + " was back for a moment"
		}
		return device + " is back online"
	}
	return device
}

// withdrawnWhy is the sentence of a hold that ended without a mail.
func withdrawnWhy(n *readmodel.Notice) string {
	lasted := span(n.Decided.Sub(n.Since))
	hold := "the hold"
	if !n.Deadline.IsZero() {
		hold = "the " + span(n.Deadline.Sub(n.Since)) + " hold"
	}
	switch n.Became {
	case notificationv1.Notification_OFFLINE:
		return fmt.Sprintf("It turned into plain offline after %s; the hold goes on under that name.", lasted)
	case notificationv1.Notification_INTERNET_OFFLINE:
		return fmt.Sprintf("It turned into internet offline after %s; the hold goes on under that name.", lasted)
	}
	if n.Type == notificationv1.Notification_ONLINE {
		return fmt.Sprintf("Back for %s, under %s, so nobody was told.", lasted, hold)
	}
	return fmt.Sprintf("Down %s, under %s, so nobody was told.", lasted, hold)
}

// badge names how far a notification came, and its tone.
func badge(n *readmodel.Notice) (word, tone string) {
	switch n.Stage {
	case notificationv1.Notification_PENDING:
		return "Holding", "hold"
	case notificationv1.Notification_WITHDRAWN:
		return "Not told", "none"
	}
	if n.Decision == nil {
		return "Deciding", "hold"
	}
	told, waiting, failed := 0, 0, 0
	for _, o := range n.Decision.Outcomes {
		switch {
		case o.Reason != deliveryv1.Outcome_MAILED:
		case o.Mail == deliveryv1.Outcome_SENT:
			told++
		case o.Mail == deliveryv1.Outcome_REJECTED, o.Mail == deliveryv1.Outcome_EXPIRED, o.Mail == deliveryv1.Outcome_HELD_ADDRESS, o.Mail == deliveryv1.Outcome_UNCERTAIN && o.Settled:
			failed++
		case o.Mail == deliveryv1.Outcome_OVER:
		default:
			waiting++
		}
	}
	switch {
	case failed > 0:
		return "Trouble", "out"
	case waiting > 0:
		return "Sending", "hold"
	case told > 0:
		return "Mailed", "ok"
	}
	return "Nobody told", "none"
}

// decisionWhy is the sentence over a decision's outcomes.
func decisionWhy(d *readmodel.Decision, name func(user string) string) string {
	var told, waiting, failed []string
	reasons := map[deliveryv1.Outcome_Reason]int{}
	for _, o := range d.Outcomes {
		who := name(o.User)
		switch {
		case o.Reason != deliveryv1.Outcome_MAILED:
			reasons[o.Reason]++
		case o.Mail == deliveryv1.Outcome_SENT:
			told = append(told, who)
		case o.Mail == deliveryv1.Outcome_UNKNOWN, o.Mail == deliveryv1.Outcome_RETRYING, o.Mail == deliveryv1.Outcome_UNCERTAIN && !o.Settled:
			waiting = append(waiting, who)
		case o.Mail == deliveryv1.Outcome_OVER:
			reasons[o.Mail]++
		default:
			failed = append(failed, who)
		}
	}
	var out []string
	if len(told) > 0 {
		out = append(out, "Mailed to "+people(told)+".")
	}
	if len(waiting) > 0 {
		out = append(out, "On its way to "+people(waiting)+".")
	}
	if len(failed) > 0 {
		out = append(out, "Did not reach "+people(failed)+".")
	}
	if len(out) > 0 {
		return strings.Join(out, " ")
	}
	if len(reasons) == 1 {
		for r := range reasons {
			return "Nobody was told: " + everybody(r)
		}
	}
	return "Nobody was told; each person's reason is below."
}

func people(names []string) string {
	switch n := len(names); {
	case n == 1:
		return names[0]
	case n <= 4:
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	default:
		return fmt.Sprintf("%s and %d others", strings.Join(names[:3], ", "), n-3)
	}
}

// everybody ends the sentence "Nobody was told: …".
func everybody(r deliveryv1.Outcome_Reason) string {
	switch r {
	case deliveryv1.Outcome_UNABLE_TO_GET_SETTINGS:
		return "the account has no settings yet."
	case deliveryv1.Outcome_NOTIFICATIONS_DISABLED:
		return "notifications are switched off."
	case deliveryv1.Outcome_NO_NOTIFICATION_ACTIONS:
		return "nobody is set up to be told of this."
	case deliveryv1.Outcome_SILENCED:
		return "it is muted."
	case deliveryv1.Outcome_OUTSIDE_USERS_SCHEDULE:
		return "it is outside everybody's hours."
	case deliveryv1.Outcome_DEFERRED:
		return "it is outside everybody's hours, and will be told when they begin if it still holds."
	case deliveryv1.Outcome_THROTTLED:
		return "it came too soon after the last mail."
	case deliveryv1.Outcome_FOLDED:
		return "it is part of the mail about its bridge."
	case deliveryv1.Outcome_NOT_TOLD_OF_OUTAGE:
		return "nobody had been told of the outage."
	case deliveryv1.Outcome_IN_DIGEST:
		return "it waits for the digest."
	case deliveryv1.Outcome_OVER:
		return "it was over before it was sent."
	case deliveryv1.Outcome_LATE:
		return "it came more than 15 minutes after it happened."
	}
	return strings.ToLower(r.String()) + "."
}

// outcomeWhy is the sentence for one person; rule is the rule's name.
func outcomeWhy(n *readmodel.Notice, o readmodel.Outcome) (why, rule string) {
	alert := n.Type == notificationv1.Notification_ALERT
	switch o.Reason {
	case deliveryv1.Outcome_MAILED:
		return mailWhy(o), ""
	case deliveryv1.Outcome_UNABLE_TO_GET_SETTINGS:
		return "The account has no settings yet, so there is nobody to tell.", "G1"
	case deliveryv1.Outcome_NOTIFICATIONS_DISABLED:
		return "Notifications are switched off: the account's, this person's, or this kind by a link in a mail.", "G1"
	case deliveryv1.Outcome_NO_NOTIFICATION_ACTIONS:
		switch {
		case o.User == "":
			return "Nobody is set up to be told of this.", "G2"
		case alert:
			return "Is not among the region's recipients, does not hold its level, or the account is in another mode.", "G2"
		}
		return "Gets status mails only as an administrator who holds the level SYSTEM.", "G2"
	case deliveryv1.Outcome_SILENCED:
		return "Muted, or in a maintenance window.", "G3"
	case deliveryv1.Outcome_OUTSIDE_USERS_SCHEDULE:
		return "Outside this person's hours.", "G4"
	case deliveryv1.Outcome_DEFERRED:
		return "Outside this person's hours; told when they begin, if it still holds then.", "G5"
	case deliveryv1.Outcome_THROTTLED:
		return "Withheld: too soon after the last mail, or over the hourly limit.", "G6"
	case deliveryv1.Outcome_FOLDED:
		return "Part of the mail about its bridge.", "G7"
	case deliveryv1.Outcome_NOT_TOLD_OF_OUTAGE:
		return "Was not told of the outage, so not of its end either.", "G8"
	case deliveryv1.Outcome_IN_DIGEST:
		return "Goes into this person's digest.", "G9"
	case deliveryv1.Outcome_OVER:
		return "Over before it was sent.", "G8"
	case deliveryv1.Outcome_LATE:
		return "Came more than 15 minutes after it happened: no mail of its own.", "M3"
	}
	return o.Reason.String(), ""
}

// mailWhy is the sentence of a mail that was decided.
func mailWhy(o readmodel.Outcome) string {
	reply := ""
	if o.Code != 0 || o.Text != "" {
		text := o.Text
		if code := fmt.Sprint(o.Code); o.Code != 0 && !strings.HasPrefix(text, code) {
			text = strings.TrimSpace(code + " " + text)
		}
		reply = " (“" + text + "”)"
	}
	switch o.Mail {
	case deliveryv1.Outcome_UNKNOWN:
		return "A mail is decided and about to be sent."
	case deliveryv1.Outcome_SENT:
		return "Mailed; the relay took it" + reply + "."
	case deliveryv1.Outcome_REJECTED:
		return "The relay refused it for good" + reply + "."
	case deliveryv1.Outcome_RETRYING:
		return "The relay did not take it yet" + reply + "; it is tried again."
	case deliveryv1.Outcome_UNCERTAIN:
		if o.Settled {
			return "It was handed over and no answer was read: it may have arrived or not" + reply + "."
		}
		return "It was handed over and no answer was read" + reply + "; it is tried again with the same Message-ID."
	case deliveryv1.Outcome_EXPIRED:
		return "Given up: it was too old to be of use" + reply + "."
	case deliveryv1.Outcome_OVER:
		return "Taken back before it was sent: the outage had ended."
	case deliveryv1.Outcome_HELD_ADDRESS:
		return "The address is held after three refusals, until an administrator releases it."
	}
	return o.Mail.String() + reply
}
