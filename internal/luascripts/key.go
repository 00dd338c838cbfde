package luascripts

// PrefixDefault starts every key of ours unless the user chose another.
const PrefixDefault = "hw"

// RulesMax bounds how many rules are decided together.
const RulesMax = 16

// JobMax is how many bytes the id of a job in a line has at most.
const JobMax = 512
