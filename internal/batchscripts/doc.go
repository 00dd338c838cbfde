// Package batchscripts calls the scripts about batches: they start, feed, change, count and drop a batch. Its keys lie in the
// slot of its queue.
package batchscripts
