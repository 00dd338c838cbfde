package e2e

// Sample returns the built-in input, without ids: 24 messages to 12 phones, three
// messages for one phone at most. Under 1/60s the phones go at once, after 60 s and after
// 120 s, so the run ends in about two minutes.
//
// The numbers belong to nobody: they are in the ranges that the regulators of
// their countries keep for films and examples.
func Sample() []Message {
	codes := []Message{
		{To: "+447700900142", Text: "Your code is 482913."},
		{To: "+12025550117", Text: "Your code is 204417."},
		{To: "+61491570156", Text: "Your code is 991350."},
		{To: "+33199001234", Text: "Your code is 618802."},
		{To: "+46701740605", Text: "Your code is 350071."},
		{To: "+447700900687", Text: "Your code is 774126."},
		{To: "+12025550173", Text: "Your code is 129964."},
		{To: "+61491570157", Text: "Your code is 560238."},
		{To: "+33199005678", Text: "Your code is 845519."},
		{To: "+46701740698", Text: "Your code is 037742."},
		{To: "+447700900951", Text: "Your code is 293380."},
		{To: "+12025550199", Text: "Your code is 716605."},
	}
	all := codes
	for _, m := range codes[:8] {
		all = append(all, Message{To: m.To, Text: "Your parcel is on its way."})
	}
	for _, m := range codes[:4] {
		all = append(all, Message{To: m.To, Text: "Your parcel has arrived."})
	}
	return all
}
