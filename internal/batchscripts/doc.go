// Package batchscripts calls the scripts about batches: a batch is started, fed, changed, counted and dropped here.
// Its keys lie in the slot of its queue.
package batchscripts
