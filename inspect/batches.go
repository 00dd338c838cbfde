package inspect

// BatchesMax bounds how many batches of a queue are listed.
const BatchesMax = 200

// The actions on batches in the audit list.
const (
	ActionPauseBatch  Action = "pause batch"
	ActionResumeBatch Action = "resume batch"
	ActionCancelBatch Action = "cancel batch"
	ActionSetPace     Action = "set pace"   // Value is the pace
	ActionSetWeight   Action = "set weight" // Value is the weight in percent
)
